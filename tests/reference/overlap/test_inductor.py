"""The plan in the code that Inductor generates. Matrix products and collectives alone: extern calls, no C++ compile."""

from __future__ import annotations

import pytest
import torch

from pytest_regional.testing import fake_process_group, regional
from tests.reference.kernels import kernels_do_nothing
from tests.reference.overlap.programs import gather_beside_product, layers, overlapping

GATHER = "_c10d_functional.all_gather_into_tensor"
WAIT = "_c10d_functional.wait_tensor"


# This setting of Inductor brings an inference graph into another order before the pass sees it.
AS_WRITTEN = {"reorder_for_locality": False}


@pytest.fixture
def inductor(tmp_path):
    with (
        fake_process_group(world_size=8),
        regional("inductor", "cpu", expects_regions=False, cache_dir=tmp_path, inductor_configs=AS_WRITTEN) as harness,
    ):
        yield harness


def triple(r, shard=(2, 16)):
    return r.randn(16, 16), r.randn(16, 16), r.randn(*shard)


def kinds(record):
    """Name collectives, products and waits in the order of the generated code."""
    named = {"collective": "start", "extern": "mm", "wait": "wait"}
    return [named[event.kind] for event in record.code.events if event.kind in named]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({}, "start start start wait mm wait mm wait mm start start mm mm wait wait"),
        ({"in_flight": 1}, "start wait start mm wait start mm wait mm start wait start mm mm wait"),
        ({"in_flight": 2}, "start start wait start mm wait mm wait mm start start mm mm wait wait"),
    ],
    ids=str,
)
def test_several_in_flight(inductor, bounds, expected):
    shards = [inductor.randn(2, 16) for _ in range(3)]
    with overlapping(**bounds) as plans:
        record = inductor.run(layers, inductor.randn(16, 16), *shards)
    assert kinds(record) == expected.split()
    assert plans[0].changed


def test_training_is_planned_in_both_directions(inductor):
    def program(x, w, shard):
        return gather_beside_product(x, w, shard).sum()

    x, w, shard = triple(inductor)
    with kernels_do_nothing(), overlapping() as plans:
        inductor.run(program, x.requires_grad_(), w.requires_grad_(), shard)
    assert len(plans) == 2
    assert [len(plan.collectives) for plan in plans] == [1, 0]


def test_dynamic_sizes(inductor):
    x, w, shard = triple(inductor)
    torch._dynamo.mark_dynamic(shard, 1)
    with overlapping(memory_bound=1 << 20) as plans:
        record = inductor.run(gather_beside_product, x, w, shard)
    record.code.assert_order(GATHER, "aten.mm#1", WAIT, "aten.mm#2")
    assert plans[0].peak_bytes_after == 16 * 16 * 4
