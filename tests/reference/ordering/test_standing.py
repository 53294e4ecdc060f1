"""Which nodes stand for a marked op behind passes that change the graph."""

from __future__ import annotations

import pytest
import torch
import torch.fx

from pytest_regional.reference import OrderingError
from pytest_regional.reference.ordering.carry_over import MARK, Snapshots
from tests.reference.ordering.graphs import aten


def graph_of(marks, outputs):
    """Build ``p = x @ w``, ``s = p + b``, ``c = cos(x)``, ``v = x.t()``, with marks by name."""
    graph = torch.fx.Graph()
    x, w, b = (graph.placeholder(name) for name in "xwb")
    made = {"p": graph.create_node("call_function", aten.mm.default, (x, w), {}, name="p")}
    made["s"] = graph.create_node("call_function", aten.add.Tensor, (made["p"], b), {}, name="s")
    made["c"] = graph.create_node("call_function", aten.cos.default, (x,), {}, name="c")
    made["v"] = graph.create_node("call_function", aten.t.default, (x,), {}, name="v")
    for name, number in marks.items():
        made[name].meta["custom"] = {MARK: number}
    graph.output(tuple(made[name] for name in outputs))
    torch.fx.GraphModule({}, graph)
    return graph, made


def noted(marks, edges, outputs="scv"):
    graph, made = graph_of(marks, outputs)
    snapshots = Snapshots(edges)
    snapshots.note(graph)
    return graph, made, snapshots


def merge(graph, made):
    """Do as Inductor's pattern matcher: one new node for two."""
    x, w, b = graph.find_nodes(op="placeholder")
    with graph.inserting_before(made["s"]):
        addmm = graph.create_node("call_function", aten.addmm.default, (b, x, w), {}, name="addmm")
    made["s"].replace_all_uses_with(addmm)
    graph.erase_node(made["s"])
    graph.erase_node(made["p"])
    return addmm


def test_a_node_that_is_still_there_stands_for_itself():
    graph, made, snapshots = noted({"p": 0, "c": 1}, ((0, 1),))
    assert snapshots.dependencies(graph) == {made["c"]: [made["p"]]}


@pytest.mark.parametrize("name", ["p", "s"])
def test_the_replacement_of_an_op_takes_over_its_order(name):
    graph, made, snapshots = noted({name: 0, "c": 1}, ((0, 1),))
    addmm = merge(graph, made)
    assert snapshots.dependencies(graph) == {made["c"]: [addmm]}


def test_a_number_that_another_op_inherited_is_not_its_own():
    graph, made, snapshots = noted({"p": 0, "c": 1}, ((0, 1),))
    meta = dict(made["s"].meta)
    addmm = merge(graph, made)
    addmm.meta = meta
    assert snapshots.dependencies(graph) == {made["c"]: [addmm]}


def test_ops_merged_around_another_are_an_error_that_names_them():
    graph, made, snapshots = noted({"p": 0, "c": 1}, ((0, 1),))
    made["c"].append(made["s"])
    *_, b = graph.find_nodes(op="placeholder")
    made["s"].replace_input_with(b, made["c"])  # the sum reads the cosine, which waits for the product
    snapshots.note(graph)
    addmm = merge(graph, made)
    made["c"].append(addmm)
    addmm.replace_input_with(b, made["c"])
    with pytest.raises(OrderingError, match=r"'c' must run after 'p', .* made c of it, which addmm needs"):
        snapshots.dependencies(graph)


def test_order_passes_over_what_is_gone():
    graph, made, snapshots = noted({"p": 0, "c": 1, "s": 2}, ((1, 0), (0, 2)), outputs="csv")
    made["s"].replace_input_with(made["p"], graph.find_nodes(op="placeholder")[0])
    graph.erase_node(made["p"])
    assert snapshots.dependencies(graph) == {made["s"]: [made["c"]]}


def test_a_view_runs_nothing_and_passes_order_on():
    graph, made, snapshots = noted({"p": 0, "v": 1, "c": 2}, ((0, 1), (1, 2)))
    assert set(snapshots.dependencies(graph)[made["c"]]) == {made["v"], made["p"]}


def test_a_graph_that_was_not_looked_at_has_no_order():
    graph, _ = graph_of({"p": 0, "c": 1}, "scv")
    assert Snapshots(((0, 1),)).dependencies(graph) == {}
