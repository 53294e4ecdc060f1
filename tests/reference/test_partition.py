"""The plan: how many partitions, which, in which order."""

import cProfile
import operator
import pstats

import pytest
import torch

from pytest_regional.reference import plan_partitions
from pytest_regional.reference.extract import extract_partitions, install_submodules
from tests.reference.graphs import ATEN, annotate_node, chain, diamond


def partitions(gm):
    return [(p.key.label, [node.name for node in p.nodes]) for p in plan_partitions(gm.graph).partitions]


def test_regions_are_deferred_until_all_their_unannotated_inputs_ran():
    """``r`` waits for ``q``, which could run at once: one partition although ``p`` was ready first."""
    assert len(partitions(diamond(["p T x", "q u x", "r T q"]))) == 1


def test_region_is_opened_when_nothing_of_its_level_is_missing():
    """Opening ``a`` first, as program order suggests, would take three partitions."""
    gm = diamond(["a1 a x", "b1 b x", "a2 a b1"])
    assert partitions(gm) == [("b", ["b1"]), ("a", ["a1", "a2"])]


def test_execution_order_stays_near_program_order():
    gm = diamond(["p u x", "a1 a p", "q u x", "a2 a a1"])
    steps = plan_partitions(gm.graph).steps
    assert [getattr(step, "name", "partition") for step in steps] == ["p", "partition", "q"]


def test_elements_live_with_the_op_that_makes_them():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    marked = annotate_node(graph.call_function(ATEN.split.Tensor, (x, 2)), 0)
    plain = graph.call_function(ATEN.split.Tensor, (x, 2))
    unmarked_element = graph.call_function(operator.getitem, (marked, 0))
    marked_element = annotate_node(graph.call_function(operator.getitem, (plain, 1)), 0)
    graph.output((unmarked_element, marked_element))
    gm = torch.fx.GraphModule({}, graph)
    (partition,) = plan_partitions(gm.graph).partitions
    assert partition.nodes == (marked, unmarked_element)


def test_dead_node_is_no_region():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    annotate_node(graph.call_function(ATEN.sin.default, (x,)), 0)
    graph.output((x,))
    assert plan_partitions(torch.fx.GraphModule({}, graph).graph).partitions == ()


def test_extra_edges_split_a_region():
    gm = diamond(["p T x", "q u x", "r T x"])
    nodes = {node.name: node for node in gm.graph.nodes}
    plan = plan_partitions(gm.graph, extra_edges=[(nodes["p"], nodes["q"]), (nodes["q"], nodes["r"])])
    assert [len(partition.nodes) for partition in plan.partitions] == [1, 1]


def test_edge_against_program_order_is_refused():
    gm = diamond(["p T x", "q u x"])
    p, q = gm.graph.find_nodes(op="call_function", target=ATEN.sin.default)
    with pytest.raises(ValueError, match="contradicts program order: q before p"):
        plan_partitions(gm.graph, extra_edges=[(q, p)])


def function_calls(action):
    """Count the Python function calls that ``action`` makes: a time that no other process can disturb."""
    profile = cProfile.Profile()
    profile.runcall(action)
    return pstats.Stats(profile).total_calls


def test_work_grows_with_the_number_of_nodes():
    def cut(word):
        gm = chain(word)
        return function_calls(lambda: extract_partitions(gm, plan_partitions(gm.graph)))

    small, large = cut("abcd" * 25), cut("abcd" * 250)
    assert large < 11 * small


def test_more_alternating_nodes_than_python_recurses():
    plan = plan_partitions(chain("abcd" * 500).graph)
    assert len(plan.partitions) == plan.least_partitions == 2_000


def test_extraction_keeps_values_names_and_metadata():
    gm = diamond(["a1 a x", "b1 b x", "b2 b a1", "a2 a b1", "u u a2 b2"])
    x = torch.randn(3)
    expected = gm(x)
    names = {node.name for node in gm.graph.nodes}
    for node in gm.graph.nodes:
        node.meta["val"] = f"value of {node.name}"
    regions = extract_partitions(gm, plan_partitions(gm.graph))
    install_submodules(gm, regions)
    gm.graph.lint()
    assert torch.equal(gm(x)[0], expected[0])
    assert [region.name for region in regions] == ["compiled_region_a_0", "compiled_region_b_0", "compiled_region_a_1"]
    kept = {node.name: node for node in gm.graph.nodes}
    assert names <= set(kept) | {"b1"}
    assert kept["b2"].meta["custom"] == {"compile_with_inductor": {"inductor_region": "b"}}
    inputs = [node for region in regions for node in region.module.graph.find_nodes(op="placeholder")]
    assert all(node.meta["val"] == f"value of {node.name}" for node in inputs)
    assert kept["compiled_region_a_0"].meta["val"] == ("value of a1",)
