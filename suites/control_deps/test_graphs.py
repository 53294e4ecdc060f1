"""What becomes of the graph: cycles are refused and named, later dependencies move ops, implied edges add nothing."""

from __future__ import annotations

import pytest
import torch

from pytest_regional.backends.ordering import OrderingCycleError, OrderingError, add_control_deps, remove_control_deps

from .edges import AddEdges, ops_by_name
from .programs import independent

pytestmark = pytest.mark.regional_compile(expects_regions=False)


def flowing(x, w):
    h = x + 1
    return h * 2, w @ w


def ordered(regional, program, *edges):
    adding = AddEdges(*edges)
    return regional.run_pass(adding, program, regional.randn(8, 8), regional.randn(8, 8), stage="graph"), adding


@pytest.mark.parametrize(
    ("edges", "cycle"),
    [
        ((("mul", "add"),), {"add", "mul"}),
        ((("mul", "mm"), ("mm", "add")), {"add", "mul", "mm"}),
        ((("mm", "mm"),), {"mm"}),
    ],
    ids=["against-values", "through-values", "itself"],
)
def test_a_cycle_is_named_and_the_graph_is_as_before(regional, edges, cycle):
    named = []

    def refused(graph):
        with pytest.raises(OrderingCycleError) as error:
            AddEdges(*edges)(graph)
        named.append(set(error.value.cycle))

    result = regional.run_pass(refused, flowing, regional.randn(8, 8), regional.randn(8, 8), stage="graph")
    assert named == [cycle]
    assert not result.changed
    assert result.before.code == result.after.code


def test_a_later_dependency_moves_the_op_and_its_users(regional):
    result, adding = ordered(regional, flowing, ("mm", "add"))
    result.assert_order("aten.mm", "aten.add", "aten.mul", pinned=True)
    result.assert_same_numerics()
    assert adding.reports[0].moved


def test_requesting_edges_again_changes_nothing(regional):
    result, _ = ordered(regional, independent, ("add", "mm"), ("mm", "mul"))
    result.assert_order("aten.add", "aten.mm", "aten.mul", pinned=True)
    result.assert_count("control_deps", 2)

    def again(graph):
        nodes = {node.name: node for node in graph.nodes}
        add_control_deps(graph, {nodes["mm"]: [nodes["add"]], nodes["mul"]: [nodes["mm"]]})

    twice = regional.run_pass(again, result.after, regional.randn(8, 8), regional.randn(8, 8), stage="graph")
    assert not twice.changed


def test_edges_in_a_chain_of_calls(regional):
    """Each call is given nodes from before the first: they are still those of the graph."""

    def step_by_step(graph):
        nodes = ops_by_name(graph)
        add_control_deps(graph, {nodes["mm"]: [nodes["add"]]})
        add_control_deps(graph, {nodes["mul"]: [nodes["mm"]]})

    inputs = regional.randn(8, 8), regional.randn(8, 8)
    result = regional.run_pass(step_by_step, independent, *inputs, stage="graph")
    result.assert_order("aten.add", "aten.mm", "aten.mul", pinned=True)
    result.assert_same_numerics()


def test_edges_implied_by_values_and_edges_add_no_operator(regional):
    result, adding = ordered(regional, flowing, ("add", "mul"))
    result.assert_count("control_deps", 0)
    result, adding = ordered(regional, independent, ("add", "mm"), ("mm", "mul"), ("add", "mul"))
    result.assert_count("control_deps", 2)
    assert len(adding.reports[0].implied) == 1


def test_removal_gives_the_graph_back(regional):
    def there_and_back(graph):
        AddEdges(("add", "mm"), ("mm", "mul"))(graph)
        assert len(remove_control_deps(graph)) == 2

    result = regional.run_pass(there_and_back, independent, regional.randn(8, 8), regional.randn(8, 8), stage="graph")
    assert not result.changed
    assert result.before.code == result.after.code


@pytest.mark.parametrize(
    ("dependencies", "message"),
    [
        (lambda ops, there: {ops["mm"]: []}, "no dependencies"),
        (lambda ops, there: {ops["mm"]: [ops["add"], ops["add"]]}, "twice"),
        (lambda ops, there: {there[0]: [ops["add"]]}, "cannot wait"),
        (lambda ops, there: {ops["mm"]: [there[-1]]}, "after the output"),
        (lambda ops, there: {ops["mm"]: [torch.fx.Graph().placeholder("x")]}, "not in this graph"),
    ],
    ids=["none", "twice", "placeholder-waits", "output", "another-graph"],
)
def test_invalid_dependencies_are_refused(regional, dependencies, message):
    def refused(graph):
        with pytest.raises(OrderingError, match=message):
            add_control_deps(graph, dependencies(ops_by_name(graph), list(graph.nodes)))

    result = regional.run_pass(refused, independent, regional.randn(8, 8), regional.randn(8, 8), stage="graph")
    assert not result.changed
