"""The table of timings in one process: a restart forgets what is in memory and keeps what is on disk."""

from __future__ import annotations

import pytest
import torch

from .programs import program_and_inputs, run
from .table import NEEDS, TABLE

pytestmark = [
    pytest.mark.regional_compile(requires=NEEDS, dynamic=False),
    # ``default`` without a uuid warns; test_errors looks at that.
    pytest.mark.filterwarnings("ignore:the pre-grad pass .* has no uuid"),
]

rows = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
kinds = pytest.mark.parametrize("kind", ["function", "module"])


def check(regional, pre_grad_pass, row, kind, training):
    counting = pre_grad_pass(uuid=row.uuid) if row.passes else None
    program, inputs = program_and_inputs(regional, kind, requires_grad=training)

    def compiled():
        return regional.compile(program, pre_grad_pass=counting, pre_grad_pass_timing=row.timing)

    with regional.expect(pre_grad_calls=row.on_miss, cache_misses=1, cache_hits=0, cache_bypasses=0, cache_saves=1):
        cold = run(compiled(), inputs, training)
    regional.restart()
    with regional.expect(pre_grad_calls=row.on_hit, cache_misses=0, cache_hits=1, cache_saves=0, region_compiles=0):
        warm = run(compiled(), inputs, training)

    assert all(map(torch.equal, cold, warm))
    torch.testing.assert_close(cold, run(program, inputs, training))
    if counting:
        outcomes = counting.calls_by_outcome
        assert (counting.calls_by_compile, outcomes["miss"], outcomes["hit"]) == (
            (row.on_miss, row.on_hit),
            row.on_miss,
            row.on_hit,
        )


@pytest.mark.quick
@kinds
@rows
def test_inference(regional, pre_grad_pass, row, kind):
    check(regional, pre_grad_pass, row, kind, training=False)


@pytest.mark.regional_compile(requires=(*NEEDS, "backward"), dynamic=False)
@kinds
@rows
def test_training(regional, pre_grad_pass, row, kind):
    check(regional, pre_grad_pass, row, kind, training=True)


@pytest.mark.regional_compile(requires=(*NEEDS, "backward", "outer_cache_of_training"), dynamic=False)
@rows
def test_a_training_graph_is_saved_before_any_backward(regional, pre_grad_pass, row):
    counting = pre_grad_pass(uuid=row.uuid) if row.passes else None
    program, inputs = program_and_inputs(regional, "function", requires_grad=True)
    with regional.expect(pre_grad_calls=row.on_miss, cache_misses=1, cache_saves=1):
        regional.compile(program, pre_grad_pass=counting, pre_grad_pass_timing=row.timing)(*inputs)
    regional.restart()
    with regional.expect(pre_grad_calls=row.on_hit, cache_misses=0, cache_hits=1, region_compiles=0):
        warm = run(
            regional.compile(program, pre_grad_pass=counting, pre_grad_pass_timing=row.timing), inputs, training=True
        )
    torch.testing.assert_close(warm, run(program, inputs, training=True))
