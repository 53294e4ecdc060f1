"""Which run takes a node that several could take."""

import pytest

from pytest_regional.reference import partition, plan_partitions
from tests.reference.graphs import diamond


def partitions(gm):
    return [[node.name for node in p.nodes] for p in plan_partitions(gm.graph).partitions]


def test_a_node_that_only_a_later_block_uses_goes_there():
    gm = diamond(["t1 a x", "m1 a t1", "u1 u m1", "t2 a x", "m2 a u1 t2"], outputs=["m2", "t2"])
    assert partitions(gm) == [["t1", "m1"], ["t2", "m2"]]


def test_a_chain_of_such_nodes_goes_together():
    gm = diamond(["m1 a x", "u1 u m1", "t a x", "s a t", "m2 a u1 s"])
    assert partitions(gm) == [["m1"], ["t", "s", "m2"]]


def test_a_node_that_the_program_has_earlier_stays():
    """Moved, it would keep its input alive for longer than the program does."""
    gm = diamond(["t2 a x", "m1 a x", "u1 u m1", "m2 a u1 t2"])
    assert partitions(gm) == [["t2", "m1"], ["m2"]]


def test_a_node_between_three_blocks_goes_to_the_nearest():
    gm = diamond(["m1 a x", "u1 u m1", "t a x", "m2 a u1", "u2 u m2", "m3 a u2 t"])
    assert partitions(gm) == [["m1"], ["t", "m2"], ["m3"]]


def test_a_node_that_others_wait_for_stays():
    gm = diamond(["m1 a x", "u1 u m1", "t a x", "v u t", "m2 a u1 t", "w u m2 v"])
    assert partitions(gm) == [["m1", "t"], ["m2"]]


def test_a_node_that_only_the_caller_uses_stays():
    gm = diamond(["m1 a x", "u1 u m1", "m2 a u1", "t a m1"], outputs=["m2", "t"])
    assert partitions(gm) == [["m1", "t"], ["m2"]]


def test_a_node_waits_for_those_it_reads():
    """``s`` could be with ``m2``, but its argument stays with ``m1``, and so its own value crosses the border."""
    gm = diamond(["t a x", "m1 a t", "u1 u m1", "s a t", "m2 a u1 s"])
    assert partitions(gm) == [["t", "m1", "s"], ["m2"]]


def test_order_edges_hold_a_node_back():
    gm = diamond(["m1 a x", "u1 u m1", "t a x", "p u x", "m2 a u1 t"], outputs=["m2", "p"])
    nodes = {node.name: node for node in gm.graph.nodes}
    free, held = (plan_partitions(gm.graph, extra_edges=edges) for edges in ((), [(nodes["t"], nodes["p"])]))
    assert [len(p.nodes) for p in free.partitions] == [1, 2]
    assert [len(p.nodes) for p in held.partitions] == [2, 1]


def test_equal_blocks_come_out_equal_in_a_chain_of_many():
    lines = ["u0 u x"]
    for i in range(1, 200):
        lines += [f"t{i} a x", f"m{i} a u{i - 1} t{i}", f"u{i} u m{i}"]
    gm = diamond(lines)
    assert partitions(gm) == [[f"t{i}", f"m{i}"] for i in range(1, 200)]


# A node that reads one of an earlier run, which itself has moved on: an LSTM's backward, cut down.
MOVED_OPERAND = (
    "a0 r x", "e0 u a0", "j r e0", "a1 r e0", "e1 u a1", "i r x", "a2 r e1", "v r j i", "e2 u a2", "z r v e2"
)  # fmt: skip


def test_a_node_follows_an_operand_that_moved_on():
    """Before, ``v`` went to a run in front of its operand's, and the eight nodes behind the cycle were lost."""
    assert partitions(diamond(MOVED_OPERAND)) == [["a0"], ["j", "a1"], ["i", "a2", "v"], ["z"]]


def test_a_plan_that_loses_a_node_is_an_error_that_names_it(monkeypatch):
    schedule = partition.schedule

    def without_the_last(dag):
        made = schedule(dag)
        return partition.Schedule(made.steps[:-1], made.least_runs)

    monkeypatch.setattr(partition, "schedule", without_the_last)
    with pytest.raises(partition.RegionalRuntimeError, match="lost z"):
        partition.plan_partitions(diamond(MOVED_OPERAND).graph)


def test_a_plan_that_has_a_node_twice_is_an_error_that_names_it(monkeypatch):
    schedule = partition.schedule

    def with_the_first_twice(dag):
        made = schedule(dag)
        return partition.Schedule([made.steps[0], *made.steps], made.least_runs)

    monkeypatch.setattr(partition, "schedule", with_the_first_twice)
    with pytest.raises(partition.RegionalRuntimeError, match="has twice a0"):
        partition.plan_partitions(diamond(MOVED_OPERAND).graph)
