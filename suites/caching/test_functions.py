"""``autograd.Function`` in what is cached: its bodies are part of the program."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import region

from .lookups import NEEDS, check, cold_and_warm
from .programs import pair

pytestmark = pytest.mark.regional_compile(requires=(*NEEDS, "backward", "outer_cache_of_training"), dynamic=False)


def function(forward_factor=1, backward_factor=1):
    """Return a program that multiplies by a new ``autograd.Function``, each time the same but for its factors."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(context, x, w):
            context.save_for_backward(x, w)
            with region("r"):
                return x @ w if forward_factor == 1 else (x @ w) @ w

        @staticmethod
        def backward(context, gradient):
            x, w = context.saved_tensors
            inner = gradient @ w.t() if backward_factor == 1 else (gradient @ w.t()) @ w.t()
            return inner, x.t() @ gradient

    def program(x, w):
        return Product.apply(x, w) @ w

    return program


def test_the_same_function_defined_again_hits(regional):
    inputs = pair(regional, training=True)
    check(regional, "miss", function(), inputs, training=True)
    check(regional, "hit", function(), inputs, training=True)


@pytest.mark.parametrize("factors", [(2, 1), (1, 2)], ids=["forward", "backward"])
def test_a_function_defined_otherwise_misses(regional, factors):
    """Of the backward alone, nothing is seen in the forward's values."""
    inputs = pair(regional, training=True)
    cold_and_warm(regional, function(), inputs, training=True)
    cold_and_warm(regional, function(*factors), inputs, training=True)
    check(regional, "hit", function(), inputs, training=True)


def test_what_it_closes_over_is_used(regional):
    """A tensor from outside is an input of the program, not part of the entry."""

    def closing(table):
        class Closing(torch.autograd.Function):
            @staticmethod
            def forward(context, x):
                context.save_for_backward(table)
                with region("r"):
                    return x @ table

            @staticmethod
            def backward(context, gradient):
                (saved,) = context.saved_tensors
                return gradient @ saved.t()

        return lambda x: Closing.apply(x)

    x, _ = pair(regional, training=True)
    for outcome in ("miss", "hit"):
        check(regional, outcome, closing(regional.randn(8, 8)), (x,), training=True)


@pytest.mark.quick
def test_inference(regional):
    cold_and_warm(regional, function(), pair(regional))
