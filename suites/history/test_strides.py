"""Strides: layouts that a fake tensor has and the real one has not, and layouts that Inductor chooses."""

from __future__ import annotations

import pytest
import torch

from .checks import parity
from .known_bugs import BugClass, assert_as_listed

pytestmark = pytest.mark.regional_compile
bugs = BugClass("strides")


@bugs(layer="inductor", notices="strides", but={"reference": None})
def cat_strides(regional):
    """``cat`` of a transposed tensor with itself has other strides."""

    def program(x):
        return torch.cat([x, x])

    parity(regional, program, regional.randn(1, 2, 3).transpose(-2, -1))


@bugs(layer="aot_autograd", notices="strides", in_region=False)
def masked_fill_strides(regional):
    """``masked_fill_`` of a transposed tensor is contiguous."""

    def program(x, mask):
        y = torch.sin(x)
        y.masked_fill_(mask, 0.5)
        return y

    regional.assert_parity(program, regional.randn(4, 4).t(), regional.tensor([True, False, True, False]))


@bugs(layer="aot_autograd", notices="strides", in_region=False)
def upsample_strides(regional):
    """``upsample_nearest1d`` of a transposed tensor has other strides."""

    def program(x):
        return torch.nn.functional.interpolate(x, scale_factor=2)

    regional.assert_parity(program, regional.randn(2, 3, 4).transpose(0, 1))


@bugs(layer="aot_autograd", notices="strides", in_region=False)
def one_hot_strides(regional):
    """``one_hot`` of a transposed tensor has other strides."""

    def program(x):
        return torch.nn.functional.one_hot(x, 4)

    regional.assert_parity(program, regional.tensor([[0, 1, 2], [3, 2, 1]]).t())


@bugs(layer="aot_autograd", notices="strides", in_region=False, requires=("mutation",))
def out_argument_strides(regional):
    """An ``out=`` argument of another layout than the inputs: what follows has the inputs' strides."""

    def program(x, out):
        torch.mul(x, 2.0, out=out)
        return torch.sin(out)

    regional.assert_parity(program, regional.randn(2, 2).t(), torch.zeros(2, 2, device=regional.device))


@bugs(layer="inductor", notices="strides")
def copysign_strides(regional):
    """``copysign`` of a dense and a channels-last tensor has other strides."""

    def program(x, y):
        return torch.copysign(x, y)

    y = regional.randn(1, 2, 4, 4).contiguous(memory_format=torch.channels_last)
    parity(regional, program, regional.randn(1, 2, 4, 4), y)


@bugs(191193, layer="inductor", notices="exception", requires=("mutation",))
def uniform_of_transposed_rows(regional):
    """``uniform_`` of rows of a transposed input."""

    def program(x):
        x.t()[1:].uniform_(1, 2)
        return x

    parity(regional, program, torch.zeros(4, 4, device=regional.device))


@pytest.mark.parametrize("bug", bugs.cases())
def test_known_bug(regional, bug, record_property):
    assert_as_listed(bug, regional, record_property)
