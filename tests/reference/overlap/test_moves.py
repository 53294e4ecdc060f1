"""Where starts and waits go, without bounds."""

from __future__ import annotations

from pytest_regional.reference import overlap_collectives
from tests.reference.overlap.graphs import ATEN, BIG, SMALL, Builder, fsdp_chain, names, node


def test_a_start_rises_to_its_inputs_and_a_wait_sinks_to_its_first_use():
    b = Builder()
    x, shard = b.input(BIG), b.input(SMALL)
    first = b.mm(x, x, name="first")
    gathered = b.wait(b.gather(shard, name="ag"), name="wait")
    second = b.mm(first, first, name="second")
    gm = b.module(b.mm(second, gathered, name="use"))
    plan = overlap_collectives(gm.graph)

    assert names(gm) == ["ag", "first", "second", "wait", "use"]
    (planned,) = plan.collectives
    assert [one.name for one in planned.hidden_by] == ["first", "second"]
    assert (planned.start_moved, planned.wait_moved, planned.stopped_by) == (1, 1, "inputs")
    assert plan.changed
    assert not planned.is_exposed
    assert planned.hidden_cost == 2.0
    gm.graph.lint()


def test_a_scatter_stays_below_what_it_scatters_and_is_hidden_by_what_follows():
    b = Builder()
    x = b.input(BIG)
    gradient = b.mm(x, x, name="gradient")
    scattered = b.wait(b.scatter(gradient, name="rs"), name="wait")
    gm = b.module(scattered, b.mm(gradient, x, name="later"))
    plan = overlap_collectives(gm.graph)

    assert names(gm) == ["gradient", "rs", "later", "wait"]
    assert [one.name for one in plan.collectives[0].hidden_by] == ["later"]


def test_a_chain_of_layers_gathers_ahead_and_scatters_behind():
    _, gm = fsdp_chain()
    plan = overlap_collectives(gm.graph)

    assert names(gm) == ["ag0", "ag1", "ag2", "wait0", "mm0", "wait1", "mm1", "wait2", "mm2", "rs", "last", "wait_rs"]
    hidden = {one.start.name: [other.name for other in one.hidden_by] for one in plan.collectives}
    assert hidden == {"ag0": [], "ag1": ["mm0"], "ag2": ["mm0", "mm1"], "rs": ["last"]}
    assert (plan.peak_in_flight_before, plan.peak_in_flight_after) == (1, 3)


def test_nodes_that_prepare_an_input_move_with_the_start():
    b = Builder()
    x, shard = b.input(BIG), b.input(SMALL)
    first = b.mm(x, x, name="first")
    prepared = b.sin(b.sin(shard, name="s1"), name="s2")
    gathered = b.wait(b.gather(prepared, name="ag"), name="wait")
    gm = b.module(b.mm(first, gathered, name="use"), b.add(prepared, prepared, name="other_user"))
    overlap_collectives(gm.graph)
    assert names(gm) == ["s1", "s2", "ag", "first", "wait", "use", "other_user"]


def test_a_view_of_the_result_moves_with_the_wait():
    b = Builder()
    x, shard = b.input(BIG), b.input(SMALL)
    gathered = b.wait(b.gather(shard, name="ag"), name="wait")
    viewed = b.op(ATEN.t.default, gathered, name="viewed")
    first = b.mm(x, x, name="first")
    gm = b.module(b.mm(first, viewed, name="use"))
    overlap_collectives(gm.graph)
    assert names(gm) == ["ag", "first", "wait", "viewed", "use"]


def test_the_second_of_two_dependent_collectives_stays_behind_the_first():
    b = Builder()
    x, shard = b.input(BIG), b.input(SMALL)
    first = b.mm(x, x, name="first")
    whole = b.wait(b.gather(shard, name="ag"), name="wait_ag")
    again = b.wait(b.reduce(whole, name="ar"), name="wait_ar")
    gm = b.module(b.mm(first, again, name="use"))
    overlap_collectives(gm.graph)
    assert names(gm) == ["ag", "first", "wait_ag", "ar", "wait_ar", "use"]


def test_collectives_of_one_group_keep_their_order_and_those_of_another_may_pass():
    def graph(second_group):
        b = Builder()
        x, shard = b.input(BIG), b.input(SMALL)
        first = b.mm(x, x, name="first")
        reduced = b.wait(b.reduce(first, name="ar"), name="wait_ar")
        second = b.mm(reduced, x, name="second")
        gathered = b.wait(b.gather(shard, second_group, name="ag"), name="wait_ag")
        return b.module(b.mm(second, gathered, name="use"))

    same, other = graph("0"), graph("1")
    overlap_collectives(same.graph)
    overlap_collectives(other.graph)
    assert names(same) == ["first", "ar", "ag", "wait_ar", "second", "wait_ag", "use"]
    assert names(other) == ["ag", "first", "ar", "wait_ar", "second", "wait_ag", "use"]

    # Sizes may differ between ranks, so a bound in bytes must not decide which group comes first.
    bounded = graph("1")
    overlap_collectives(bounded.graph, memory_bound=1 << 30)
    assert names(bounded) == names(same)


def test_a_second_application_changes_nothing():
    _, gm = fsdp_chain()
    first = overlap_collectives(gm.graph)
    before, code = names(gm), str(gm.graph)
    second = overlap_collectives(gm.graph)
    assert not second.changed
    assert not second.edges
    assert (names(gm), str(gm.graph)) == (before, code)
    assert [one.start for one in second.collectives] == [one.start for one in first.collectives]
    assert second.peak_bytes_before == second.peak_bytes_after == first.peak_bytes_after
    assert [one.hidden_by for one in second.collectives] == [one.hidden_by for one in first.collectives]


def test_the_plan_of_a_graph_is_the_same_each_time():
    texts = [str(overlap_collectives(fsdp_chain()[1].graph, in_flight=2)) for _ in range(2)]
    assert texts[0] == texts[1]


def test_a_graph_without_collectives_is_untouched():
    b = Builder()
    x = b.input(BIG)
    gm = b.module(b.mm(b.sin(x), x))
    before = str(gm.graph)
    plan = overlap_collectives(gm.graph)
    assert str(gm.graph) == before
    assert (plan.collectives, plan.edges, plan.changed) == ((), (), False)


def test_the_hook_says_what_hides():
    b = Builder()
    x, shard = b.input(BIG), b.input(SMALL)
    slow = b.sin(x, name="slow")
    gathered = b.wait(b.gather(shard, name="ag"), name="wait")
    gm = b.module(b.add(slow, gathered, name="use"))
    plan = overlap_collectives(gm.graph, cost=lambda one: 5.0 if "sin" in str(one.target) else 0.0)
    assert plan.of(node(gm, "ag")).hidden_by == (node(gm, "slow"),)
    assert plan.of(node(gm, "wait")).hidden_cost == 5.0
    again = overlap_collectives(gm.graph, cost=lambda one: 5.0 if "sin" in str(one.target) else 0.0)
    assert again.collectives[0].hidden_cost == 5.0, "the hook sees the op, not what wraps it"
