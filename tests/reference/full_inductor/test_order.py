"""Order edges hold in the code of a whole graph, in forward and backward; Inductor's own passes lose none."""

import pytest
import torch

from pytest_regional import CodeAssertionError
from pytest_regional.reference import add_control_deps
from tests.reference.full_inductor.backend import harness
from tests.reference.kernels import kernels_do_nothing

functional = torch.nn.functional


def program(x, w):
    return w @ w, functional.gelu(x), x + 1


def edges(graph, asked):
    nodes = {node.name: node for node in graph.nodes}
    if {name for pair in asked for name in pair} <= set(nodes):
        for name, other in asked:
            nodes = {node.name: node for node in graph.nodes}
            add_control_deps(graph, {nodes[name]: [nodes[other]]})


def changed_by(asked):
    def change(gm):
        edges(gm.graph, asked)
        gm.recompile()

    return change


def test_without_edges_they_are_fused():
    with kernels_do_nothing(), harness() as made:
        record = made.run(program, made.randn(8, 8), made.randn(8, 8))
        record.code.assert_fused("aten.add", "aten.gelu")
        with pytest.raises(CodeAssertionError):
            record.code.assert_order("aten.gelu", "aten.mm", "aten.add")


def test_with_edges_they_run_in_that_order():
    """Both end points are ops that Inductor decomposes, or fuses, or neither."""
    with harness(change=changed_by([("mm", "gelu"), ("add", "mm")])) as made:
        inputs = made.randn(8, 8), made.randn(8, 8)
        record = made.run(program, *inputs)
        torch.testing.assert_close(record.output, program(*inputs))
        record.code.assert_order("aten.gelu", "aten.mm", "aten.add")
        record.code.assert_not_fused("aten.gelu", "aten.add")


def test_backward_edges():
    """Without them the two gradients of ``x`` are one kernel."""

    def fn(x, y):
        return functional.gelu(x).sum() + functional.silu(x).sum() + (y @ y.detach()).sum()

    asked = [("mm_1", "gelu_backward"), ("silu_backward", "mm_1")]
    with kernels_do_nothing(), harness(change=changed_by(asked)) as made:
        record = made.run(fn, *(made.randn(8, 8, requires_grad=True) for _ in range(2)))
        record.code.assert_order("aten.gelu_backward", "aten.mm", "aten.silu_backward", graph="backward")


def test_edges_of_ops_that_inductor_merges_in_the_graph():
    """``addmm`` swallows the ``add``; the edge is carried to it."""

    def fn(x, w, b):
        return x.cos(), (x @ w) + b

    with kernels_do_nothing(), harness(change=changed_by([("cos", "mm")])) as made:
        record = made.run(fn, made.randn(8, 8), made.randn(8, 8), made.randn(8))
        record.code.assert_order("aten.addmm", "aten.cos")
