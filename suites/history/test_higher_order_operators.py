"""Higher-order operators: nested compile regions that are used again, loops, functions."""

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops import associative_scan, while_loop

from pytest_regional import torch_matches

from .checks import same, skip_without_nested_backward
from .known_bugs import BugClass, assert_as_listed

pytestmark = pytest.mark.regional_compile
bugs = BugClass("higher-order operator", needs=("higher_order_operators",))
nested = torch.compiler.nested_compile_region


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.full((3,), float(n + 1)) for n in range(3)])
        self.layer = 0

    @nested
    def block(self, x):
        return x * self.weights[self.layer]

    def forward(self, x):
        for self.layer in range(3):
            x = self.block(x)
        return x


@bugs(192906, layer="dynamo", torch=">=2.13", notices="value", in_region=False)
def nested_region_with_an_index(regional):
    """A nested region reads ``weights[index]``, and the index changes: every call reads the first."""
    regional.assert_parity(Layers().to(regional.device), regional.randn(3), backward=False)


class Box:
    flag = True


@nested
def inner(x, flag):
    return x.sin() if flag else x.cos()


@nested
def outer(x, box):
    return inner(x, box.flag) + 1


@bugs(192905, layer="dynamo", torch=">=2.15", notices="value", in_region=False)
def nested_region_in_a_nested_region(regional):
    """A nested region calls another one, whose guards fail: its body for the first value is used again."""
    box = Box()

    def program(x):
        box.flag = True
        y = outer(x, box)
        box.flag = False
        return outer(y, box)

    regional.assert_parity(program, regional.randn(3))


@nested
def second_of(x, y):
    return torch.sin(y)


@bugs(layer="dynamo", torch=">=2.13", notices="value", in_region=False)
def nested_region_of_equal_inputs(regional):
    """A nested region is called with one tensor twice, then with two: the second call computes with one."""

    def program(x):
        return second_of(second_of(x, x), x)

    regional.assert_parity(program, regional.randn(3))


@nested
def atan(x, y):
    return torch.atan(x)


@bugs(layer="dynamo", torch=">=2.13", notices="exception", in_region=False, requires=("backward", "mutation"))
def write_to_nested_result(regional):
    """What the second call of a nested region returned is written in place."""
    skip_without_nested_backward(regional)

    def program(x):
        atan(x, x)
        second = atan(x, x)
        second.add_(x)
        return second

    regional.assert_parity(program, regional.randn(3, requires_grad=True))


@nested
def larger(x, y):
    return torch.maximum(x, y)


@bugs(layer="dynamo", notices="exception", in_region=False)
def aliases_into_nested_region(regional):
    """A nested region that is given a tensor and its ``detach`` does not compile."""

    def program(x):
        return larger(x, x.detach())

    regional.assert_parity(program, regional.randn(3))


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * y, grad * x


@bugs(layer="dynamo", notices="exception", in_region=False, requires=("backward",))
def while_loop_result_in_function(regional):
    """What a while loop returns cannot be given to an ``autograd.Function``."""

    def program(x):
        start = torch.zeros((), dtype=torch.int64, device=x.device)
        _, y = while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, y.sin()), (start, x))
        return Product.apply(y, x)

    regional.assert_parity(program, regional.randn(3, 4, requires_grad=True))


@bugs(layer="aot_autograd", notices="value", in_region=False, requires=("mutation",))
def scan_of_one_row(regional):
    """``associative_scan`` over one row returns its input, not a copy, and both are written."""

    def program(x):
        first = x.sin()
        second = associative_scan(lambda left, right: left + right, first, 0, combine_mode="generic")
        torch._foreach_neg_([first, second])
        return second

    regional.assert_parity(program, regional.randn(1))


@bugs(195327, layer="inductor", torch=">=2.13,<2.15", notices="value", in_region=False, requires=("mutation",))
def condition_writes_what_was_written(regional):
    """The condition of a while loop writes to an input that was written before the loop: its writes are lost."""
    if torch_matches("<2.13"):
        pytest.skip("eager refuses the program before torch 2.13")

    def program(x, total):
        total.add_(10)

        def condition(i):
            total.add_(1)
            return i < 3

        (last,) = while_loop(condition, lambda i: (i + 1,), (x,))
        return last, total * 2

    with torch.no_grad():
        compiled = regional.compile(program)(
            torch.zeros((), device=regional.device), torch.zeros((), device=regional.device)
        )
        same(
            "value", compiled, program(torch.zeros((), device=regional.device), torch.zeros((), device=regional.device))
        )


@pytest.mark.quick
@pytest.mark.parametrize("bug", bugs.cases())
def test_known_bug(regional, bug, record_property):
    assert_as_listed(bug, regional, record_property)
