"""Passes that fail: the user's own error, with where it was; graphs that are none."""

from __future__ import annotations

import pytest
import torch

from pytest_regional.harness.graph_passes.recorder import GraphPassError
from pytest_regional.testing import regional

from .passes import aten, nothing, products, sums, swap


class MineError(Exception):
    """An error of the user's."""


def failing(graph):
    raise MineError("my own words")


@pytest.mark.parametrize("backend", ["inductor", "reference", "torch"])
def test_exceptions_of_a_pass_propagate_unchanged(backend):
    with regional(backend, expects_regions=False) as r:
        x, w = r.randn(4, 8), r.randn(8, 8)
        with pytest.raises(
            MineError, match=r"my own words\s+run_pass: raised by the pass failing at stage 'post_grad' on"
        ):
            r.run_pass(failing, products, x, w, stage="post_grad")


def test_the_graph_is_named(inductor):
    def fails_in_backward(graph):
        if len(graph.find_nodes(op="call_function", target=aten.mm.default)) == 2 and len(graph.nodes) == 8:
            return
        raise MineError

    x, w = inductor.randn(4, 8, requires_grad=True), inductor.randn(8, 8, requires_grad=True)
    with pytest.raises(MineError, match="at stage 'post_grad' on the backward graph"):
        inductor.run_pass(fails_in_backward, products, x, w)
    with pytest.raises(MineError, match="at stage 'joint' on the joint graph"):
        inductor.run_pass(failing, products, x, w, stage="joint")
    with pytest.raises(MineError, match="at stage 'pre_grad' on the dynamo graph"):
        inductor.run_pass(failing, products, x, w, stage="pre_grad")
    with pytest.raises(MineError, match="at stage 'graph' on the graph"):
        inductor.run_pass(failing, products, x, w, stage="graph")


def uses_what_is_not_there(graph):
    other = torch.fx.Graph().placeholder("elsewhere")
    (add,) = graph.find_nodes(op="call_function", target=aten.add.Tensor)
    add.args = (other, add.args[1])


def makes_a_cycle(graph):
    (add,) = graph.find_nodes(op="call_function", target=aten.add.Tensor)
    (mul,) = graph.find_nodes(op="call_function", target=aten.mul.Tensor)
    add.args, mul.args = (mul, mul), (add, add)


def turns_round(graph):
    """Inductor sorts what a pass leaves, so that this is legal there, and nowhere else."""
    first, second = graph.find_nodes(op="call_function", target=aten.mm.default)
    second.append(first)


@pytest.mark.parametrize("broken", [uses_what_is_not_there, makes_a_cycle])
@pytest.mark.parametrize("stage", ["graph", "post_grad"])
def test_a_graph_that_is_none(inductor, broken, stage):
    x = inductor.randn(4, 4)
    with pytest.raises(
        GraphPassError, match=rf"the pass {broken.__name__} left an invalid graph \(the .*graph, stage '{stage}'\)"
    ):
        inductor.run_pass([nothing, broken, nothing], sums, x, x.T.contiguous(), stage=stage)


def test_an_unsorted_graph(inductor):
    x, w = inductor.randn(4, 8), inductor.randn(8, 8)
    with pytest.raises(
        GraphPassError, match=r"turns_round left an invalid .* it would be sorted first.*was used before"
    ):
        inductor.run_pass(turns_round, products, x, w, stage="graph")
    result = inductor.run_pass(turns_round, products, x, w, stage="post_grad")
    result.assert_order("aten.mm#1", "aten.mm#2", pinned=True)


def test_a_graph_that_was_invalid_before(inductor):
    graph = torch.fx.symbolic_trace(lambda x: x.sin().cos()).graph
    *_, cos, output = graph.nodes
    cos.args = (output,)
    with pytest.raises(GraphPassError, match="invalid before any pass ran"):
        inductor.run_pass(nothing, graph)


def test_a_graph_that_inductor_cannot_compile(inductor):
    """The compiler's error stays, with a note that a pass had been at work."""
    with pytest.raises(
        Exception, match=r"run_pass: swapping \(stage 'post_grad'\) had run on the inference graph; see"
    ):
        inductor.run_pass(swap(aten.sin.default, aten.cat.default), torch.sin, inductor.randn(3))


def test_a_program_that_fails_in_eager(inductor):
    with pytest.raises(Exception, match="had run on no graph yet"):
        inductor.run_pass(nothing, torch.mm, inductor.randn(3, 2), inductor.randn(3, 2))
