"""Sizes that are symbols: arithmetic with them, and what is made for any value."""

from __future__ import annotations

import pytest
import torch

from .checks import same
from .known_bugs import BugClass, BugNoticedError, assert_as_listed

pytestmark = pytest.mark.regional_compile
bugs = BugClass("dynamic shapes", needs=("dynamic_shapes",))


@bugs(197894, layer="dynamo", notices="value", in_region=False, but={"inductor": None}, dynamic=True)
def power_of_negative_number(regional):
    """``(-1) ** x.shape[0]`` is written as ``-1 ** x.shape[0]`` in the code of a graph."""

    def program(x):
        return x.sin(), (-1) ** x.shape[0]

    regional.assert_parity(program, regional.randn(4))


@bugs(layer="aot_autograd", notices="value", in_region=False, dynamic=True, requires=("aliasing", "mutation"))
def view_of_strided_dynamic_input(regional):
    """An input with gaps is written, and a view of it returned: its elements are those of the gaps."""

    def program(x):
        view = x.view_as(x)
        x.mul_(x)
        return view

    regional.assert_parity(program, regional.randn(8)[::2])


@bugs(
    layer="aot_autograd",
    torch="<2.15",
    notices="input state",
    in_region=False,
    dynamic=True,
    requires=("aliasing", "mutation"),
)
def product_of_three_sizes(regional):
    """A slice with gaps is written next to its tensor: its stride, a product of three sizes, loses one of them."""

    def program(x, y):
        y.mul_(2)
        return x.sign()

    expected, found = torch.ones(4, 5, 6, device=regional.device), torch.ones(4, 5, 6, device=regional.device)
    program(expected, expected[..., ::2])
    try:
        regional.compile(program)(found, found[..., ::2])
    except Exception as error:
        # A backend that interprets the graph calls ``operator.mul`` with all three.
        if "mul expected 2 arguments, got 3" in str(error):
            raise BugNoticedError("input state", str(error)) from error
        raise
    same("input state", found, expected)


@bugs(
    layer="aot_autograd",
    torch="<2.15",
    notices="value",
    in_region=False,
    dynamic=True,
    requires=("aliasing", "mutation"),
)
def split_of_strided_dynamic_input(regional):
    """A piece that ``tensor_split`` makes of an input with gaps is a copy, and misses a later write to the input."""

    def program(x):
        first, _, _ = x.tensor_split(3, 0)
        x.zero_()
        return first

    regional.assert_parity(program, torch.ones(3, 3, device=regional.device)[:, 1:-1])


@bugs(layer="aot_autograd", notices="exception", in_region=False, dynamic=True, requires=("backward",))
def bicubic_of_dynamic_size(regional):
    """Bicubic interpolation with antialiasing that trains does not compile."""

    def program(x):
        return torch.nn.functional.interpolate(x, scale_factor=2.0, mode="bicubic", antialias=True)

    regional.assert_parity(program, regional.randn(2, 3, 4, 4, requires_grad=True))


@bugs(layer="dynamo", torch="<2.15", notices="exception", in_region=False, dynamic=True)
def jvp_of_slice_dynamic(regional):
    """``torch.func.jvp`` of a slice does not compile."""

    def program(x):
        return torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1]

    regional.assert_parity(program, regional.randn(3, 4)[1:])


@pytest.mark.parametrize("bug", bugs.cases())
def test_known_bug(regional, bug, record_property):
    assert_as_listed(bug, regional, record_property)
