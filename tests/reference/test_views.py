"""Partitions that compute nothing are left eager, where their region has others."""

import operator

import pytest
import torch

from pytest_regional.reference import explain_program, plan_partitions, regional_inductor, split_regions
from pytest_regional.reference.effects import computes
from tests.reference.graphs import ATEN, InterpretedCompiler, annotate_node


def built(lines):
    """Build a graph from lines of ``name letter op argument...``; ``u`` is no region."""
    graph = torch.fx.Graph()
    values = {"x": graph.placeholder("x")}
    values["x"].meta["val"] = torch.empty(4, 4)
    for line in lines:
        name, letter, op, *arguments = line.split()
        target = (
            getattr(ATEN, op).int if op == "select" else getattr(ATEN, op).default if op != "add_" else ATEN.add_.Scalar
        )
        extra = {"select": (0, 1), "add_": (1,), "view": ([16],)}.get(op, ())
        node = graph.create_node("call_function", target, (*(values[a] for a in arguments), *extra), {}, name=name)
        node.meta["val"] = target(*(values[a].meta["val"] for a in arguments), *extra)
        values[name] = node if letter == "u" else annotate_node(node, {"inductor_region": letter})
    graph.output(tuple(value for value in values.values() if not value.users))
    return torch.fx.GraphModule({}, graph)


def partitions(gm):
    return [[node.name for node in partition.nodes] for partition in plan_partitions(gm.graph).partitions]


def test_a_view_between_two_partitions_is_left_eager():
    assert partitions(built(["p a sin x", "e u cos p", "v a t e", "f u cos v", "q a sin f"])) == [["p"], ["q"]]


def test_a_chain_of_views_is_left_eager():
    assert partitions(built(["p a sin x", "e u cos p", "v a t e", "w a select v", "f u cos w"])) == [["p"]]


def test_a_view_next_to_an_op_is_compiled():
    assert partitions(built(["p a sin x", "v a t p"])) == [["p", "v"]]
    assert partitions(built(["v a t x", "p a sin v"])) == [["v", "p"]]


def test_a_region_with_only_views_is_compiled_as_annotated():
    assert partitions(built(["e u sin x", "v a t e", "f u cos v"])) == [["v"]]
    assert partitions(built(["e u sin x", "v a t e", "f u cos v", "p b sin f"])) == [["v"], ["p"]]


def test_views_alone_in_a_backward_are_left_eager():
    gm = built(["e u sin x", "v a t e", "f u cos v"])
    for node in gm.graph.nodes:
        node.meta["partitioner_tag"] = "is_backward"
    assert partitions(gm) == []


def test_a_write_through_a_view_is_seen_behind_it():
    gm = built(["p a sin x", "e u clone p", "v a t e", "w u add_ v", "q u cos e", "r a sin q"])
    x = torch.randn(4, 4)
    expected = torch.fx.Interpreter(gm).run(x)
    assert partitions(gm) == [["p"], ["r"]]
    split = split_regions(gm)
    for actual, wanted in zip(split(x), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=0, atol=0)


def test_a_write_in_the_region_is_no_view():
    assert partitions(built(["p a sin x", "e u clone p", "v a t e", "w a add_ v", "q u cos e"])) == [["p"], ["v", "w"]]


def test_an_order_edge_at_a_view_is_kept():
    gm = built(["p a sin x", "e u cos p", "v a t e", "f u cos x", "q a sin v"])
    nodes = {node.name: node for node in gm.graph.nodes}
    plan = plan_partitions(gm.graph, extra_edges=[(nodes["v"], nodes["f"]), (nodes["f"], nodes["q"])])
    order = [step for step in plan.steps if isinstance(step, torch.fx.Node)]
    assert [len(partition.nodes) for partition in plan.partitions] == [1, 1]
    assert order.index(nodes["v"]) < order.index(nodes["f"])


@pytest.mark.parametrize(
    ("target", "arguments", "value", "does"),
    [
        (ATEN.view.default, ([16],), torch.empty(16), False),
        (ATEN._unsafe_view.default, ([16],), torch.empty(16), False),
        (ATEN.split.Tensor, (2,), [torch.empty(2, 4)] * 2, False),
        (ATEN.detach.default, (), torch.empty(4, 4), False),
        (ATEN.sym_size.int, (0,), 4, False),
        (ATEN.expand.default, ([2, 4, 4],), torch.empty(2, 4, 4), False),
        (ATEN.reshape.default, ([16],), torch.empty(16), True),
        (ATEN.clone.default, (), torch.empty(4, 4), True),
        (ATEN.squeeze_.default, (), torch.empty(4, 4), True),
        (ATEN._local_scalar_dense.default, (), 1.0, True),
        (ATEN.rand_like.default, (), torch.empty(4, 4), True),
    ],
    ids=lambda part: str(part) if callable(part) else "",
)
def test_what_computes(target, arguments, value, does):
    graph = torch.fx.Graph()
    node = graph.call_function(target, (graph.placeholder("x"), *arguments))
    node.meta["val"] = value
    assert computes(node) is does


def test_arithmetic_on_sizes_computes_nothing():
    graph = torch.fx.Graph()
    node = graph.call_function(operator.mul, (graph.placeholder("s"), 2))
    node.meta["val"] = 8
    assert not computes(node)


def test_a_region_of_a_view_alone_is_compiled_in_the_forward_only():
    """Whoever annotates a view alone sees one region, and no vacuous test."""
    from pytest_regional import region

    def program(x, w):
        h = x.sin()
        with region("view"):
            h = h.t()
        return h @ w

    forward, backward = explain_program(program, torch.randn(4, 4, requires_grad=True), torch.randn(4, 4), show=False)
    assert [partition.ops for partition in forward.partitions] == [("aten.t.default",)]
    assert backward.partitions == ()


def test_the_compiler_is_not_asked():
    compiler = InterpretedCompiler()
    gm = built(["p a sin x", "e u cos p", "v a t e", "f u cos v", "q a sin f"])
    regional_inductor(gm, torch.randn(4, 4), compiler=compiler, share_identical=False)
    assert compiler.ops == [[ATEN.sin.default]] * 2
