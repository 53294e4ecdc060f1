"""Order inside regions, across them, and to eager code."""

from __future__ import annotations

import pytest

from pytest_regional import region

from .edges import run_ordered_regions
from .programs import independent
from .test_whole_regions import RAN, passing

pytestmark = pytest.mark.regional_compile(requires=("regions",), dynamic=False)


@pytest.fixture(autouse=True)
def _nothing_ran():
    RAN.clear()


@pytest.mark.regional_compile(requires=("regions", "region_order", "inductor_code"))
def test_an_edge_inside_a_region(regional):
    """What the capability ``region_order`` is about."""
    inputs = regional.randn(8, 8), regional.randn(8, 8)
    record = run_ordered_regions(regional, independent, *inputs, edges=(("add", "mm"), ("mm", "mul")))
    record.code.assert_order("aten.add", "aten.mm", "aten.mul")


def twins(x, w):
    with region("a"):
        h = x + 1
        first = w @ w, h * 2
    y = first[1].exp()
    with region("b"):
        g = y + 1
        return *first, w @ w, g * 2


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("regions", "region_order"))
def test_a_region_with_an_edge_is_not_shared_with_one_without(regional):
    inputs = regional.randn(8, 8), regional.randn(8, 8)
    record = run_ordered_regions(regional, twins, *inputs, edges=(("add#2", "mm#2"), ("mm#2", "mul#2")))

    assert record.counters["region_compiles"] == 2
    record.code.assert_order("aten.add#2", "aten.mm#2", "aten.mul#2")


def two_regions(x, w):
    with region("a"):
        first = passing(x, "a")
    with region("b"):
        second = passing(w, "b")
    return first @ second


def region_and_eager(x, w):
    first = passing(x, "eager")
    with region("b"):
        second = passing(w, "b")
    return first @ second


@pytest.mark.regional_compile(requires=("regions", "region_order"))
@pytest.mark.parametrize("program", [two_regions, region_and_eager], ids=lambda program: program.__name__)
def test_an_edge_that_crosses_regions_orders_them(regional, program):
    inputs = regional.randn(8, 8), regional.randn(8, 8)
    regional.run(program, *inputs)
    name = "a" if program is two_regions else "eager"
    assert [name, "b"] == RAN
    RAN.clear()
    run_ordered_regions(regional, program, *inputs, edges=(("passing#2", "passing#1"),))
    assert RAN[:2] == ["b", name]
