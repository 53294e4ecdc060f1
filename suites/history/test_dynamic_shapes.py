"""Sizes that are symbols: arithmetic with them, and what is made for any value."""

from __future__ import annotations

import pytest

from .known_bugs import BugClass, assert_as_listed

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


@pytest.mark.parametrize("bug", bugs.cases())
def test_known_bug(regional, bug, record_property):
    assert_as_listed(bug, regional, record_property)
