"""Gradients: what is saved for the backward, what it computes again, derivatives of other modes and orders."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

from pytest_regional import ParityError

from .checks import gradient, parity, same, skip_without_nested_backward
from .known_bugs import BugClass, BugNoticedError, assert_as_listed

pytestmark = pytest.mark.regional_compile
bugs = BugClass("gradient", needs=("backward",))
REGIONAL_NEVER = {"torch": None, "reference": None}


@bugs(197887, layer="inductor", notices="refusal", in_region=False)
def saved_view_of_input_is_written(regional):
    """An input, of which a view is saved for the backward, is written between: eager refuses the backward."""

    def program(x, w):
        return x.view(4, 4) @ w

    def backward(function):
        x, w = torch.ones(16, device=regional.device), torch.ones(4, 4, requires_grad=True, device=regional.device)
        y = function(x, w)
        x.add_(1)
        y.sum().backward()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        backward(program)
    try:
        backward(regional.compile(program))
    except RuntimeError:
        return
    raise BugNoticedError("refusal", "compiled, the backward went through, with other values than the forward's")


@bugs(197084, layer="aot_autograd", notices="gradient", in_region=False)
def pseudoinverse_of_complex(regional):
    """The gradient of ``linalg.pinv`` of a complex matrix is wrong."""

    def program(x):
        y = torch.linalg.pinv(x)
        return (y * y.conj()).real

    x = torch.complex(*(regional.randn(4, 3, dtype=torch.float64) for _ in range(2)))
    same("gradient", gradient(regional.compile(program), x), gradient(program, x))


@bugs(190855, layer="inductor", torch="<2.15", notices="value", in_region=False)
def hessian_of_trace(regional):
    """``torch.func.hessian`` of a function of the trace is wrong."""

    def program(x):
        return torch.func.hessian(lambda a: torch.trace(a).sin())(x)

    x = regional.randn(3, 3)
    same("value", regional.compile(program)(x), program(x))


@bugs(187284, layer="inductor", torch="<2.15", notices="value", in_region=False)
def tangents_are_dropped(regional):
    """A dual tensor goes in, and what comes out has no tangent; from 2.15 on such a call is refused."""

    def program(x):
        return x.sin() * 2

    compiled, x = regional.compile(program), regional.randn(3)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        try:
            tangent = forward_ad.unpack_dual(compiled(dual)).tangent
        except RuntimeError:
            return
        if tangent is None:
            raise BugNoticedError("value", "the result has no tangent")
        same("value", tangent, forward_ad.unpack_dual(program(dual)).tangent)


@bugs(layer="aot_autograd", notices="gradient", in_region=False, but=REGIONAL_NEVER, requires=("mutation",))
def recomputed_from_written_input(regional):
    """The gradient of ``x * (x + y)``, where y is written afterwards: the sum is computed again from that."""

    def program(x, y):
        h = x + y
        z = x * h
        y.zero_()
        return z

    try:
        regional.assert_parity(program, regional.randn(3, requires_grad=True), regional.randn(3))
    except ParityError as error:
        # A backend that runs the graph in eager has autograd notice that it is computed from what was written since.
        if "modified by an inplace operation" in str(error):
            raise BugNoticedError("gradient", str(error)) from error
        raise


@bugs(layer="aot_autograd", torch=">=2.13", notices="gradient", in_region=False)
def gradient_of_overlapping_output(regional):
    """The gradient of an output whose elements overlap in memory is wrong."""

    def program(x):
        return torch.mul(x, 1.0).unfold(0, 2, 1)

    regional.assert_parity(program, torch.ones(3, requires_grad=True, device=regional.device))


@bugs(layer="aot_autograd", notices="gradient", in_region=False, dynamic=True, requires=("aliasing", "dynamic_shapes"))
def gradient_of_expanded_leaf(regional):
    """The gradient of a leaf that is ``expand(...).detach()``, whose ``flatten()`` is returned, is a mean of rows."""

    def program(x):
        return x.flatten()

    regional.assert_parity(program, torch.ones(1, 1, device=regional.device).expand(2, 1).detach().requires_grad_())


@bugs(
    layer="aot_autograd",
    torch="<2.15",
    notices="exception",
    in_region=False,
    but=REGIONAL_NEVER,
    requires=("mutation",),
)
def write_by_gradient(regional):
    """An input is multiplied in place by one that wants a gradient: the backward fails."""

    def program(x, w):
        x.mul_(w)
        return x

    regional.assert_parity(
        program,
        torch.ones(4, device=regional.device),
        torch.full((4,), 3.0, requires_grad=True, device=regional.device),
    )


# One thread alone, as workers of pytest-xdist have on few cores, adds without atomics.
@bugs(layer="inductor", torch="<2.15", notices="exception", inductor_configs={"cpp.threads": 2})
def index_select_of_equal_indices(regional):
    """The backward of ``index_select`` with an index that is expanded from one number does not compile."""

    def program(x, index):
        return torch.index_select(x, 1, index)

    parity(regional, program, regional.randn(2, 4, requires_grad=True), regional.tensor([1]).expand(4))


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad


def block(x):
    return torch.nn.functional.silu(x) * x


nested_block = torch.compiler.nested_compile_region(block)


@bugs(layer="inductor", torch="<2.15", notices="gradient", in_region=False, requires=("higher_order_operators",))
def condition_and_nested_region(regional):
    """One block in both branches of a condition and as a nested region, beside a topk: a wrong gradient."""
    skip_without_nested_backward(regional)

    def program(x):
        y = StraightThrough.apply(x)
        values, indices = torch.topk(x, 3, 0)
        chosen = torch.cond(y.flatten()[0] > 0, block, block, (y,))
        return indices, chosen, nested_block(y), values

    regional.assert_parity(program, regional.randn(3, 3, requires_grad=True))


nested_sine = torch.compiler.nested_compile_region(lambda x: torch.sin(x))


@bugs(layer="inductor", torch=">=2.13", notices="gradient", in_region=False, requires=("higher_order_operators",))
def nested_region_called_twice(regional):
    """A nested region is called with its own result: what was saved for its gradient is overwritten."""
    skip_without_nested_backward(regional, calls=2)

    def program(x):
        return nested_sine(nested_sine(x)), x * x

    regional.assert_parity(program, regional.randn(4, requires_grad=True))


@bugs(layer="inductor", notices="gradient")
def average_pool_in_ceil_mode(regional):
    """``avg_pool2d`` with ``ceil_mode``: gradients of windows at the end are divided by more than they should be."""

    def program(x):
        return torch.nn.functional.avg_pool2d(x, 2, ceil_mode=True)

    parity(regional, program, regional.randn(1, 1, 3, 3, requires_grad=True))


class AddInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        x.add_(y)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, grad


@bugs(layer="dynamo", torch="<2.13", notices="gradient", requires=("higher_order_operators", "mutation"))
def gradient_of_marked_dirty(regional):
    """An ``autograd.Function`` writes its first input and marks it dirty: its second one gets no gradient."""

    def program(x):
        y = torch.sin(x)
        AddInPlace.apply(y, x)
        return y

    parity(regional, program, regional.randn(4, requires_grad=True))


@bugs(layer="aot_autograd", notices="gradient", requires=("mutation",))
def foreach_on_view(regional):
    """A ``foreach`` operator writes in place to a view that a gradient flows through, and the gradient misses it."""

    def program(x):
        view = (x * 2).t()
        torch._foreach_mul_([view], 0.5)
        return view

    parity(regional, program, torch.ones(2, 2, requires_grad=True, device=regional.device))


@bugs(layer="inductor", torch="<2.13", notices="exception")
def attention_float64_training(regional):
    """Attention in float64 cannot be trained: its logsumexp is traced as float32."""

    def program(x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    parity(regional, program, regional.randn(2, 2, 2, 2, dtype=torch.float64, requires_grad=True))


@bugs(layer="dynamo", notices="exception", in_region=False, requires=("mutation",))
def viewed_before_detach(regional):
    """A tensor is viewed and then detached in place and written: a slice of the view does not compile."""

    def program(x):
        sine = x.sin()
        view = sine.flatten()
        sine.detach_()
        sine.neg_()
        first, _ = view.chunk(2)
        return first.detach() + x.flatten()[:2]

    regional.assert_parity(program, torch.ones(2, 2, requires_grad=True, device=regional.device))


@pytest.mark.parametrize("bug", bugs.cases())
def test_known_bug(regional, bug, record_property):
    assert_as_listed(bug, regional, record_property)
