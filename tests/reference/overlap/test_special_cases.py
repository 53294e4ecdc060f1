"""Starts, waits and values that are not the usual pair."""

from __future__ import annotations

import pytest
import torch

from pytest_regional._base.errors import RegionalValueError
from pytest_regional.reference import add_control_deps, overlap_collectives
from tests.reference.overlap.graphs import ATEN, BIG, C10D, SMALL, Builder, names, node
from tests.reference.overlap.interpreter import RaceError, run


def test_a_start_without_a_wait_stays_and_no_other_passes_it():
    b = Builder()
    x, shard = b.input(BIG), b.input(SMALL)
    first = b.mm(x, x, name="first")
    b.reduce(first, name="dangling")
    gathered = b.wait(b.gather(shard, name="ag"), name="wait")
    second = b.mm(first, x, name="second")
    gm = b.module(b.mm(second, gathered, name="use"))
    plan = overlap_collectives(gm.graph)
    assert names(gm) == ["first", "dangling", "ag", "second", "wait", "use"]
    assert [one.start.name for one in plan.collectives] == ["ag"]


def test_a_wait_for_an_input_stays():
    b = Builder()
    x, pending = b.input(BIG), b.input(BIG)
    waited = b.wait(pending, name="wait")
    first = b.mm(x, x, name="first")
    gm = b.module(b.mm(first, waited, name="use"))
    assert not overlap_collectives(gm.graph).changed
    assert names(gm) == ["wait", "first", "use"]


def test_a_result_waited_for_twice_is_hidden_until_the_first_wait():
    b = Builder()
    x, shard = b.input(BIG), b.input(SMALL)
    started = b.gather(shard, name="ag")
    early, late = b.wait(started, name="early"), b.wait(started, name="late")
    first = b.mm(x, x, name="first")
    second = b.mm(first, early, name="second")
    gm = b.module(b.mm(second, late, name="third"))
    plan = overlap_collectives(gm.graph)
    assert names(gm) == ["ag", "first", "early", "second", "late", "third"]
    assert [one.name for one in plan.collectives[0].hidden_by] == ["first"]


def test_a_result_that_is_only_returned_is_waited_for_at_the_end():
    b = Builder()
    x = b.input(BIG)
    scattered = b.wait(b.scatter(x, name="rs"), name="wait")
    gm = b.module(scattered, b.mm(b.mm(x, x, name="first"), x, name="second"))
    overlap_collectives(gm.graph)
    assert names(gm) == ["rs", "first", "second", "wait"]


def test_a_wait_stays_before_a_write_of_what_the_collective_reads():
    def program(wait_first):
        b = Builder()
        x, y = b.input(BIG), b.input(BIG)
        started = b.reduce(x, name="ar")
        waited = b.wait(started, name="wait") if wait_first else None
        b.op(ATEN.copy_.default, x, y, name="write")
        waited = b.wait(started, name="wait") if waited is None else waited
        return b, b.module(waited, b.mm(y, y, name="last"))

    b, gm = program(wait_first=True)
    overlap_collectives(gm.graph)
    assert names(gm) == ["ar", "wait", "write", "last"]
    run(gm, b.values())

    # That it matters: the interpreter refuses the order that the pass must not make.
    b, wrong = program(wait_first=False)
    with pytest.raises(RaceError, match="written while"):
        run(wrong, b.values())


def test_a_start_stays_behind_an_earlier_write_of_its_input():
    b = Builder()
    x, y = b.input(BIG), b.input(BIG)
    product = b.mm(y, y, name="first")
    b.op(ATEN.copy_.default, x, product, name="write")
    gm = b.module(b.wait(b.reduce(x, name="ar"), name="wait"))
    overlap_collectives(gm.graph)
    assert names(gm) == ["first", "write", "ar", "wait"]


def test_coalesced_collectives_stay_together():
    b = Builder()
    x, one, two = b.input(BIG), b.input(SMALL), b.input(SMALL)
    first = b.mm(x, x, name="first")
    _, elements = b.gather_together([one, two], name="bucket")
    waited = [b.wait(element, name=f"wait{i}") for i, element in enumerate(elements)]
    second = b.mm(first, waited[0], name="second")
    gm = b.module(b.mm(second, waited[1], name="third"))
    plan = overlap_collectives(gm.graph)
    assert names(gm) == ["bucket", "getitem", "getitem_1", "first", "wait0", "second", "wait1", "third"]
    assert plan.collectives[0].bytes_in_flight == 2 * 16 * 16 * 4
    assert not overlap_collectives(gm.graph).changed


def test_edges_that_stand_already_are_kept():
    b = Builder()
    x, shard = b.input(BIG), b.input(SMALL)
    first = b.mm(x, x, name="first")
    second = b.mm(x, first, name="second")
    gathered = b.wait(b.gather(shard, name="ag"), name="wait")
    gm = b.module(b.mm(second, gathered, name="use"))
    add_control_deps(gm.graph, {node(gm, "ag"): [node(gm, "first")]})
    plan = overlap_collectives(gm.graph)
    assert names(gm) == ["first", "ag", "second", "wait", "use"]
    assert node(gm, "ag").args[0] == (node(gm, "first"),)
    assert (plan.collectives[0].op, plan.collectives[0].group) == ("all_gather_into_tensor", "0")


def test_in_place_collectives_stay_and_no_start_passes_them():
    b = Builder()
    x, y, shard = b.input(BIG), b.input(BIG), b.input(SMALL)
    first = b.mm(x, x, name="first")
    b.op(C10D.all_reduce_.default, y, "sum", "0", name="in_place")
    gathered = b.wait(b.gather(shard, "1", name="ag"), name="wait")
    gm = b.module(b.mm(first, gathered, name="use"))
    overlap_collectives(gm.graph)
    assert names(gm) == ["first", "in_place", "ag", "wait", "use"]


def test_symbolic_sizes_count_by_their_hints():
    from torch.fx.experimental.proxy_tensor import make_fx

    def program(x, shard):
        gathered = C10D.wait_tensor(C10D.all_gather_into_tensor(shard, 8, "0"))
        return (x @ x) @ gathered

    gm = make_fx(program, tracing_mode="symbolic")(torch.randn(16, 16), torch.randn(2, 16))
    plan = overlap_collectives(gm.graph, memory_bound=1 << 20)
    assert plan.peak_bytes_after == 16 * 16 * 4
    assert [one.name for one in plan.collectives[0].hidden_by] == ["mm"]
    gm.graph.lint()


def test_a_collective_without_a_value_is_an_error_that_says_what_to_do():
    b = Builder()
    shard = b.input(SMALL)
    gm = b.module(b.wait(b.gather(shard, name="ag")))
    del node(gm, "ag").meta["val"]
    with pytest.raises(RegionalValueError, match=r"'ag'.*FakeTensorProp"):
        overlap_collectives(gm.graph)


@pytest.mark.parametrize(
    ("bounds", "named"),
    [
        ({"memory_bound": 0.5}, "0.5 is a factor"),
        ({"memory_bound": -1}, "must not be negative"),
        ({"memory_bound": True}, "not True"),
        ({"memory_bound": float("nan")}, "nan is a factor"),
        ({"memory_bound": "1G"}, "'1G'"),
        ({"in_flight": 0}, "not 0"),
        ({"in_flight": 1.5}, r"not 1\.5"),
    ],
    ids=str,
)
def test_a_bound_that_means_nothing_is_an_error(bounds, named):
    with pytest.raises(RegionalValueError, match=named):
        overlap_collectives(torch.fx.Graph(), **bounds)
