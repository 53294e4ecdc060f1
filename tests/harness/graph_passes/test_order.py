"""Order in the graph: by position, and by what makes it so."""

from __future__ import annotations

import pytest
import torch

from pytest_regional.harness.codegen import OpError
from pytest_regional.harness.graph_passes.recorder import GraphAssertionError
from pytest_regional.testing import regional

from .passes import aten, nothing, order_after, products, sums


@pytest.fixture
def plain(bare):
    return bare.run_pass(nothing, sums, bare.randn(4, 4), bare.randn(4, 4), stage="graph")


@pytest.fixture
def ordered(bare):
    """The product after the addition, by control_deps."""
    ordering = order_after(aten.mm.default, aten.add.Tensor)
    return bare.run_pass(ordering, sums, bare.randn(4, 4), bare.randn(4, 4), stage="graph")


def test_position(plain):
    plain.assert_order("aten.add", "aten.mm", "aten.mul", "aten.cat")
    with pytest.raises(GraphAssertionError) as failure:
        plain.assert_order("aten.add", "aten.mul", "aten.mm")
    text = str(failure.value)
    assert "aten.mul.Tensor (mul) stands after aten.mm.default (mm)" in text
    marked = [line.split()[1] for line in text.splitlines() if line.startswith(">")]
    assert marked == ["mm", "mul"]


def test_position_pins_nothing(plain):
    with pytest.raises(
        GraphAssertionError, match=r"\(add\) stands before, by position alone .* aten.mm.default \(mm\)"
    ):
        plain.assert_order("aten.add", "aten.mm", pinned=True)


def test_control_deps_pin(ordered):
    ordered.assert_order("aten.add", "aten.mm", "aten.mul")
    ordered.assert_order("aten.add", "aten.mm", "aten.cat", pinned=True)
    with pytest.raises(GraphAssertionError, match="by position alone"):
        ordered.assert_order("aten.mm", "aten.mul", pinned=True)


def test_the_operator_and_the_body_that_it_stands_in(ordered):
    ordered.assert_order("control_deps", "aten.mm", pinned=True)
    with pytest.raises(GraphAssertionError, match="stands after"):
        ordered.assert_order("aten.mm", "control_deps")


def test_data_flow_pins(bare):
    result = bare.run_pass(nothing, products, bare.randn(4, 4), bare.randn(4, 4), stage="graph")
    result.assert_order("aten.mm#1", "aten.mm#2", pinned=True)
    with pytest.raises(GraphAssertionError, match=r"mm_1\) stands after .*\(mm\)"):
        result.assert_order("aten.mm#2", "aten.mm#1")
    with pytest.raises(GraphAssertionError, match=r"lacks 'aten.mm#3'"):
        result.assert_order("aten.mm#2", "aten.mm#3")
    with pytest.raises(GraphAssertionError, match="stands after"):
        result.assert_order("aten.mm", "aten.mm")


def test_every_occurrence_of_one_before_every_one_of_the_next(bare):
    def interleaved(x):
        return x.sin().cos().sin()

    result = bare.run_pass(nothing, interleaved, bare.randn(3), stage="graph")
    result.assert_order("aten.sin#1", "aten.cos", "aten.sin#2", pinned=True)
    with pytest.raises(GraphAssertionError, match=r"\(sin_1\) stands after aten.cos.default"):
        result.assert_order("aten.sin", "aten.cos")


def test_inside_the_body_of_an_operator(bare):
    def branching(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin() + x.cos(), torch.tan, (x,))

    result = bare.run_pass(nothing, branching, bare.randn(3), stage="graph")
    result.assert_order("aten.sum", "cond", "aten.sin", "aten.cos", "aten.tan")
    result.assert_order("aten.sum", "aten.cos", pinned=True)
    with pytest.raises(GraphAssertionError, match="by position alone"):
        result.assert_order("aten.sin", "aten.cos", pinned=True)


def test_questions_that_could_not_fail(plain):
    with pytest.raises(TypeError, match="two operators or more, not 1"):
        plain.assert_order("aten.add")
    with pytest.raises(OpError, match=r"Did you mean 'aten.mm.default'"):
        plain.assert_order("aten.add", "aten.mmm")
    with pytest.raises(GraphAssertionError, match=r"no graph holds all of these operators: the graph lacks 'aten.tan'"):
        plain.assert_order("aten.add", "aten.tan")


def test_a_graph_answers_for_the_operators_that_it_holds():
    """The forward holds both operators, the backward the product alone."""
    with regional("inductor") as r:
        x, w = r.randn(4, 8, requires_grad=True), r.randn(8, 8, requires_grad=True)
        result = r.run_pass(nothing, lambda x, w: (x @ w) @ w, x, w, stage="post_grad")
        result.assert_order("aten.mm#1", "aten.mm#2", pinned=True, graph="forward")
        result.assert_order("aten.mm", "aten.permute", graph="forward")
        with pytest.raises(GraphAssertionError, match=r"lacks 'aten.permute'"):
            result.assert_order("aten.mm#1", "aten.permute", graph="backward")
        with pytest.raises(
            GraphAssertionError, match=r"forward graph lacks 'aten.add'; the backward graph lacks 'aten.permute'"
        ):
            result.assert_order("aten.permute", "aten.add")


def test_order_asked_of_inductor_is_in_the_graph_that_it_compiled():
    with regional("inductor") as r:
        x, y = r.randn(4, 4), r.randn(4, 4)
        result = r.run_pass(order_after(aten.mm.default, aten.add.Tensor), sums, x, y, stage="post_grad")
        result.assert_order("aten.add", "aten.mm", pinned=True)
        result.assert_replaced(before=[], after="control_deps")
        result.assert_same_numerics()
