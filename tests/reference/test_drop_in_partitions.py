"""How many partitions hand-made graphs have, counted as people count PyTorch's: by the calls in the graph."""

import operator

import pytest
import torch
import torch.fx

from pytest_regional.reference import plan_partitions, regional_inductor, split_regions
from tests.reference.graphs import InterpretedCompiler, annotate_node, chain


def graph_of(build):
    graph = torch.fx.Graph()
    graph.output(build(graph, graph.placeholder("x"), graph.placeholder("y")))
    return torch.fx.GraphModule({}, graph)


def tagged(graph, op, *args, region=None):
    return annotate_node(graph.call_function(op, args), {} if region is None else {"inductor_region": region})


def calls(gm):
    return [node.target for node in gm.graph.find_nodes(op="call_module") if node.target.startswith("compiled_region_")]


def counts(gm):
    """Count in the plan, in the split graph, and in what is compiled; all three must agree."""
    planned = len(plan_partitions(gm.graph).partitions)
    compiler = InterpretedCompiler()
    duplicate = torch.fx.GraphModule(gm, torch.fx.Graph())
    duplicate.graph.output(duplicate.graph.graph_copy(gm.graph, {}))
    inputs = [torch.randn(3) for _ in gm.graph.find_nodes(op="placeholder")]
    regional_inductor(duplicate, *inputs, compiler=compiler, share_identical=False)
    split = split_regions(gm)
    split.graph.lint()
    assert planned == len(compiler.requests) == len(calls(split))
    return planned


@pytest.mark.parametrize(("word", "partitions"), [("uTTTu", 1), ("TTuTT", 2), ("TuTuT", 3), ("TuTuTuT", 4), ("uuu", 0)])
def test_chains(word, partitions):
    assert counts(chain(word)) == partitions


@pytest.mark.parametrize("op", [torch.add, operator.add, torch.mul])
def test_plain_functions_count_as_ops(op):
    def build(graph, x, y):
        first = tagged(graph, op, x, y)
        return tagged(graph, op, graph.call_function(op, (first, y)), y)

    assert counts(graph_of(build)) == 2


def test_two_independent_ops_side_by_side():
    assert counts(graph_of(lambda g, x, y: (tagged(g, torch.sin, x), tagged(g, torch.cos, y)))) == 1


@pytest.mark.parametrize(("regions", "partitions"), [((None, None), 1), (("a", "a"), 1), (("a", "b"), 2)])
def test_independent_ops_around_an_unannotated_one(regions, partitions):
    def build(graph, x, y):
        first = tagged(graph, torch.sin, x, region=regions[0])
        middle = graph.call_function(torch.neg, (y,))
        return first, middle, tagged(graph, torch.cos, y, region=regions[1])

    assert counts(graph_of(build)) == partitions


@pytest.mark.parametrize(("regions", "partitions"), [((None, None), 1), (("a", "a"), 1), (("a", "b"), 2)])
def test_a_dependency_across_an_unrelated_op(regions, partitions):
    def build(graph, x, y):
        first = tagged(graph, torch.sin, x, region=regions[0])
        unrelated = graph.call_function(torch.neg, (y,))
        return tagged(graph, torch.cos, first, region=regions[1]), unrelated

    assert counts(graph_of(build)) == partitions


def test_three_in_a_chain_with_two_unrelated_fillers():
    def build(graph, x, y):
        one = tagged(graph, torch.sin, x)
        filler = graph.call_function(torch.neg, (y,))
        two = tagged(graph, torch.cos, one)
        other = graph.call_function(torch.neg, (filler,))
        return tagged(graph, torch.sin, two), other

    assert counts(graph_of(build)) == 1


def test_a_split_graph_computes_the_same_and_names_its_regions():
    gm, x = chain("uauab"), torch.randn(3)
    expected = gm(x)
    split = split_regions(gm)
    assert calls(split) == ["compiled_region_a_0", "compiled_region_a_1", "compiled_region_b_0"]
    torch.testing.assert_close(split(x), expected)
    assert split is gm
