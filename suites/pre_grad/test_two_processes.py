"""The table of timings in two real processes: a new one finds on disk what this one compiled."""

from __future__ import annotations

import warnings

import pytest
import torch

from pytest_regional.testing import pre_grad_pass

from .programs import program_and_inputs, run, square
from .table import NEEDS, TABLE

pytestmark = pytest.mark.regional_compile(requires=NEEDS, dynamic=False, expects_regions=False)

#: Whether it trains, and as what the program comes; all four combinations are in ``test_table.py``.
WAYS = ((False, "function"), (True, "module"))


def cells(regional):
    """Return all that is compiled: each row for inference, and to train if that is claimed."""
    ways = WAYS if regional.supports("backward") else WAYS[:1]
    return [(training, row, kind) for training, kind in ways for row in TABLE]


def compile_all(regional):
    """Compile each cell, of a size of its own so that no two share an entry; return what was counted."""
    warnings.simplefilter("ignore")
    seen = {}
    for n, (training, row, kind) in enumerate(cells(regional)):
        regional.restart()
        counting = pre_grad_pass(uuid=row.uuid) if row.passes else None
        program, inputs = program_and_inputs(regional, kind, n=8 + n, requires_grad=training)
        before = regional.counters
        compiled = regional.compile(program, pre_grad_pass=counting, pre_grad_pass_timing=row.timing)
        values = run(compiled, inputs, training)
        assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(values, run(program, inputs, training), strict=True))
        moved = regional.counters - before
        runs = counting.calls_by_outcome if counting else {}
        counts = (moved.pre_grad_calls, runs.get("miss", 0), runs.get("hit", 0), moved.cache_misses, moved.cache_hits)
        seen[training, row.name, kind] = counts
    return seen


def test_table(regional):
    cold, counted = compile_all(regional), regional.counters
    warm = regional.in_new_process(compile_all)

    expected = [((training, row.name, kind), row) for training, row, kind in cells(regional)]
    # Runs, those on a miss, those on a hit; misses, hits.
    assert cold == {cell: (row.on_miss, row.on_miss, 0, 1, 0) for cell, row in expected}
    assert warm.value == {cell: (row.on_hit, 0, row.on_hit, 0, 1) for cell, row in expected}
    assert warm.counters.region_compiles == 0
    assert (counted.pre_grad_calls, warm.counters.pre_grad_calls) == (
        sum(row.on_miss for _, row in expected),
        sum(row.on_hit for _, row in expected),
    )


TIMINGS = ("late", "early")


def compile_squares(regional, uuid):
    """Compile with each timing, of a size of its own; return values, hits and misses."""
    seen = {}
    for n, timing in enumerate(TIMINGS):
        regional.restart()
        counting = pre_grad_pass(uuid=uuid, transform=square)
        program, inputs = program_and_inputs(regional, "function", n=8 + n)
        before = regional.counters
        value = run(regional.compile(program, pre_grad_pass=counting, pre_grad_pass_timing=timing), inputs)[0]
        torch.testing.assert_close(value, inputs[0] @ inputs[0])
        moved = regional.counters - before
        seen[timing] = value, (moved.cache_hits, moved.cache_misses)
    return seen


def compile_squares_of(regional, uuids):
    """Do so with each identity, one after the other, on the same numbers."""
    found = []
    for uuid in uuids:
        torch.manual_seed(regional.seed)
        found.append(compile_squares(regional, uuid))
    return found


def test_another_uuid_in_another_process(regional):
    """``late`` keeps entries of two uuids apart, ``early`` looks at the graph, and a hit is bitwise what was saved."""
    first = compile_squares(regional, "v1")
    other, again = regional.in_new_process(compile_squares_of, ["v2", "v1"]).value
    assert {timing: first[timing][1] for timing in TIMINGS} == {"late": (0, 1), "early": (0, 1)}
    assert {timing: other[timing][1] for timing in TIMINGS} == {"late": (0, 1), "early": (1, 0)}
    assert {timing: again[timing][1] for timing in TIMINGS} == {"late": (1, 0), "early": (1, 0)}
    assert all(torch.equal(first[timing][0], again[timing][0]) for timing in TIMINGS)
