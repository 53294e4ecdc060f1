"""Tensor subclasses: those that can be taken apart work in and out of regions, others are refused by name."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

from .annotations import in_region

pytestmark = pytest.mark.regional_compile()


class Wrapped(torch.Tensor):
    """Wraps one tensor and passes every operator on to it."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, inner.stride(), dtype=inner.dtype, device=inner.device, requires_grad=inner.requires_grad
        )

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self):
        return f"{type(self).__name__}({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):
        def unwrap(value):
            return value.inner if isinstance(value, cls) else value

        def wrap(value):
            return cls(value) if isinstance(value, torch.Tensor) else value

        arguments, keywords = pytree.tree_map(unwrap, (arguments, keywords or {}))
        return pytree.tree_map(wrap, function(*arguments, **keywords))


class TakenApart(Wrapped):
    """Says how to take it apart, so a compiler can look inside."""

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return TakenApart(inner["inner"])


def program(x, w):
    g = x.sin()
    with in_region("r"):
        h = g @ w
    return h.cos()


@pytest.mark.parametrize(
    "requires_grad", [False, pytest.param(True, marks=pytest.mark.regional_compile(requires=("backward",)))]
)
def test_a_subclass_crosses_a_region(regional, requires_grad):
    x, w = regional.randn(4, 8), regional.randn(8, 8)
    wrapped, weight = TakenApart(x.clone()), TakenApart(w.clone())
    if requires_grad:
        wrapped.requires_grad_(), weight.requires_grad_()
    record = regional.run(program, wrapped, weight)

    assert type(record.output) is TakenApart
    torch.testing.assert_close(record.output.inner.detach(), program(x, w))
    if requires_grad:
        x.requires_grad_(), w.requires_grad_()
        assert type(wrapped.grad) is TakenApart


@pytest.mark.regional_compile(expects_regions=False)
def test_a_subclass_that_cannot_be_taken_apart_is_refused_by_name(regional):
    with pytest.raises(Exception, match="Wrapped"):
        regional.run(program, Wrapped(regional.randn(4, 8)), regional.randn(8, 8))
