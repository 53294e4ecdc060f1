"""``autograd.Function`` inside regions: what it saves, marks and returns."""

from __future__ import annotations

import pytest
import torch

from .annotations import in_region

pytestmark = pytest.mark.regional_compile(requires=("backward", "higher_order_operators"))


def pair(regional):
    return regional.randn(4, 8, requires_grad=True), regional.randn(8, 8, requires_grad=True) / 3


class SavesAResult(torch.autograd.Function):
    """The gradient needs an input and a value computed in the forward; it is doubled to be told from PyTorch's own."""

    @staticmethod
    def forward(context, x, w):
        product = x @ w
        context.save_for_backward(x, w, product)
        return product @ w

    @staticmethod
    def backward(context, gradient):
        x, w, product = context.saved_tensors
        inner = gradient @ w.t()
        return 2 * inner @ w.t(), x.t() @ inner + product.t() @ gradient


class TwoResults(torch.autograd.Function):
    """Two results, one of which needs no gradient, and an argument that is no tensor."""

    @staticmethod
    def forward(context, x, w, scale):
        context.scale = scale
        context.save_for_backward(w)
        product = x @ w
        where = product.argmax(dim=1)
        context.mark_non_differentiable(where)
        return product, where

    @staticmethod
    def backward(context, gradient, _):
        (w,) = context.saved_tensors
        return gradient @ w.t() * context.scale, None, None


def saves_a_result(x, w):
    with in_region("r"):
        h = SavesAResult.apply(x, w)
    return h.sin()


def two_results(x, w):
    with in_region("r"):
        h, where = TwoResults.apply(x, w, 3.0)
    return h.sin(), where


@pytest.mark.parametrize("program", [saves_a_result, two_results], ids=lambda program: program.__name__)
def test_training(regional, program):
    regional.assert_parity(program, *pair(regional))


@pytest.mark.regional_compile(requires=("backward", "higher_order_operators", "regions"))
def test_its_backward_is_compiled_in_the_same_region(regional):
    record = regional.run(saves_a_result, *pair(regional))

    assert record.region("r", "forward").ops.count("aten.mm.default") == 2
    assert record.region("r", "backward").ops.count("aten.mm.default") == 4
