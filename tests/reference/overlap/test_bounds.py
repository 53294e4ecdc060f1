"""What bounds on memory and on collectives in flight leave of the overlap."""

from __future__ import annotations

import pytest

from pytest_regional.reference import overlap_collectives
from tests.reference.overlap.graphs import BIG, Builder, fsdp_chain, names

WHOLE = 16 * 16 * 4


def hidden(plan):
    return {one.start.name: [other.name for other in one.hidden_by] for one in plan.collectives}


@pytest.mark.parametrize(
    ("in_flight", "expected"),
    [
        (1, {"ag0": [], "ag1": ["mm0"], "ag2": ["mm1"], "ag3": ["mm2"], "rs": ["last"]}),
        (2, {"ag0": [], "ag1": ["mm0"], "ag2": ["mm0", "mm1"], "ag3": ["mm1", "mm2"], "rs": ["last"]}),
    ],
)
def test_no_more_in_flight_than_asked(in_flight, expected):
    _, gm = fsdp_chain(layers=4)
    plan = overlap_collectives(gm.graph, in_flight=in_flight)
    assert hidden(plan) == expected
    assert plan.peak_in_flight_after == in_flight
    assert [one.stopped_by for one in plan.collectives].count("in_flight") >= 2


@pytest.mark.parametrize("memory_bound", [2 * WHOLE, 2.0], ids=["bytes", "factor"])
def test_memory_for_two_buffers_gathers_one_layer_ahead(memory_bound):
    """The buffer of a layer lives until its product, so the next but one has to wait for that."""
    _, gm = fsdp_chain(layers=4)
    plan = overlap_collectives(gm.graph, memory_bound=memory_bound)
    assert hidden(plan) == {"ag0": [], "ag1": ["mm0"], "ag2": ["mm1"], "ag3": ["mm2"], "rs": ["last"]}
    assert (plan.peak_bytes_before, plan.peak_bytes_after) == (WHOLE + WHOLE // 8, 2 * WHOLE)


def test_the_unchanged_graphs_own_peak_is_allowed():
    _, gm = fsdp_chain()
    before = names(gm)
    plan = overlap_collectives(gm.graph, memory_bound=0)
    assert plan.peak_bytes_after == plan.peak_bytes_before
    assert [name for name in names(gm) if "rs" not in name] == [name for name in before if "rs" not in name]


def test_room_for_few_waits_is_shared():
    """Of three scatters, each is hidden by what follows it, instead of the first one until the end."""
    b = Builder()
    x = b.input(BIG)
    scattered = []
    for i in range(3):
        x = b.mm(x, x, name=f"mm{i}")
        scattered.append(b.wait(b.scatter(x, name=f"rs{i}"), name=f"wait{i}"))
    gm = b.module(*scattered, b.mm(x, x, name="last"))
    plan = overlap_collectives(gm.graph, in_flight=1)
    assert hidden(plan) == {"rs0": ["mm1"], "rs1": ["mm2"], "rs2": ["last"]}


def test_a_factor_is_one_of_what_the_graph_needed_at_first():
    _, gm = fsdp_chain(layers=6)
    first = overlap_collectives(gm.graph, memory_bound=2.0)
    second = overlap_collectives(gm.graph, memory_bound=2.0)
    assert second.memory_bound == first.memory_bound
    assert not second.changed
