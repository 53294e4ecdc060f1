"""Edges between regions, and to eager ops, order partitions; none is lost, none makes a cycle."""

from __future__ import annotations

import pytest
import torch
import torch.fx

from pytest_regional.reference import OrderingCycleError, add_control_deps, explain, regional_inductor, split_regions
from pytest_regional.reference.ordering.edges import dependencies_of, is_control_deps
from tests.reference.graphs import InterpretedCompiler, diamond
from tests.reference.ordering.graphs import node


def ordered(lines, asked, outputs=None):
    gm = with_values(diamond(lines, outputs))
    add_control_deps(
        gm.graph, {node(gm, name): [node(gm, other) for other in others] for name, others in asked.items()}
    )
    gm.recompile()
    return gm


def with_values(gm):
    for n in gm.graph.nodes:
        n.meta["val"] = torch.empty(3, device="meta")
    return gm


def outer(gm):
    """Return what the outer graph runs, in order: regions by name, eager ops by theirs."""
    return [str(n.target) if n.op == "call_module" else n.name for n in gm.graph.nodes if runs(n)]


def runs(n):
    return n.op == "call_module" or (n.op == "call_function" and "getitem" not in str(n.target))


def test_an_edge_between_regions_orders_their_partitions():
    lines = ["p a x", "q b x"]
    assert outer(split_regions(diamond(lines))) == ["compiled_region_a_0", "compiled_region_b_0"]
    gm = split_regions(ordered(lines, {"p": ["q"]}))
    assert outer(gm) == ["compiled_region_b_0", "compiled_region_a_0"]
    assert not any(is_control_deps(n) for n in gm.graph.nodes)


@pytest.mark.parametrize(("asked", "order"), [({"p": ["e"]}, ["e", "p"]), ({"e": ["p"]}, ["p", "e"])])
def test_an_edge_between_a_region_and_an_eager_op(asked, order):
    gm = split_regions(ordered(["e u x", "p a x"], asked))
    assert outer(gm) == [{"p": "compiled_region_a_0"}.get(name, name) for name in order]


def test_the_value_waited_for_does_not_leave_its_region():
    gm = split_regions(ordered(["p a x", "q a p", "r b x"], {"r": ["p"]}, outputs=["q", "r"]))
    (first, second) = gm.graph.find_nodes(op="call_module", target="compiled_region_a_0")[0], gm.compiled_region_b_0
    assert len(first.users) == 1
    assert len(second.graph.find_nodes(op="placeholder")) == 1


def test_an_edge_through_another_region_splits_and_says_so():
    lines = ["p a x", "q b x", "r a x"]
    assert [p.name for p in explain(with_values(diamond(lines)), show=False).partitions] == [
        "compiled_region_a_0",
        "compiled_region_b_0",
    ]
    gm = ordered(lines, {"q": ["p"], "r": ["q"]})
    explanation = explain(gm, show=False)
    assert [(p.region, p.split_by) for p in explanation.partitions] == [
        ("a", None),
        ("b", None),
        ("a", "region 'b' (compiled_region_b_0), by requested order"),
    ]
    assert is_control_deps(node(gm, "q"))
    assert outer(split_regions(gm)) == ["compiled_region_a_0", "compiled_region_b_0", "compiled_region_a_1"]


def test_an_edge_through_an_eager_op_splits_and_says_so():
    gm = ordered(["p a x", "e u x", "r a x"], {"e": ["p"], "r": ["e"]})
    assert [p.split_by for p in explain(gm, show=False).partitions] == [None, "e, by requested order"]


def test_a_split_by_values_does_not_blame_an_edge():
    gm = ordered(["p a x", "e u p", "r a e", "s a x"], {"s": ["r"]})
    assert [p.split_by for p in explain(gm, show=False).partitions] == [None, "e"]


def test_edges_that_cross_both_ways_make_no_cycle():
    gm = split_regions(ordered(["p a x", "q b x", "r a x", "s b x"], {"q": ["p"], "r": ["s"]}))
    names = outer(gm)
    assert len(names) == 3
    gm(torch.randn(3))
    gm.graph.lint()


def test_an_edge_inside_a_region_goes_with_it():
    gm = split_regions(ordered(["p a x", "q a x"], {"p": ["q"]}))
    inside = gm.compiled_region_a_0
    p = node(inside, "p")
    assert [d.name for d in dependencies_of(p)] == ["q"]
    x = torch.randn(3)
    torch.testing.assert_close(gm(x), (x.sin(), x.sin()))


def test_a_compiler_gets_only_the_edges_of_its_region():
    compiler = InterpretedCompiler()
    gm = ordered(["p a x", "q a x", "r b x"], {"q": ["p"], "r": ["q"]})
    regional_inductor(gm, torch.randn(3), compiler=compiler)
    orders = [[(a.name, b.name) for a, b in request.order] for request in compiler.requests]
    assert orders == [[("p", "q")], []]


def test_eager_ops_are_bare_again_and_in_order():
    gm = ordered(["e u x", "f u x", "p a x"], {"e": ["f"]})
    regional_inductor(gm, torch.randn(3), compiler=InterpretedCompiler())
    assert not any(is_control_deps(n) for n in gm.graph.nodes)
    names = [n.name for n in gm.graph.nodes]
    assert names.index("f") < names.index("e")


def test_an_edge_against_values_is_refused_when_it_is_added():
    with pytest.raises(OrderingCycleError, match="p"):
        ordered(["p a x", "q b p"], {"p": ["q"]})
