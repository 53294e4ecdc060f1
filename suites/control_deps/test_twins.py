"""Without edges Inductor orders and fuses otherwise: what the cases of ``test_order`` assert can fail."""

from __future__ import annotations

import pytest

from pytest_regional import CodeAssertionError, region

from .edges import AddEdges, run_ordered, run_ordered_regions
from .programs import BACK, BRANCH_FORTH, FORTH, in_branches, independent, many_kinds

pytestmark = pytest.mark.regional_compile(requires=("inductor_code",), dynamic=False)


def test_without_edges_the_ops_are_fused(regional):
    record = run_ordered(regional, independent, regional.randn(8, 8), regional.randn(8, 8), edges=())
    record.code.assert_fused("aten.add", "aten.mul")
    with pytest.raises(CodeAssertionError, match="fused into one kernel"):
        record.code.assert_not_fused("aten.add", "aten.mul")
    with pytest.raises(CodeAssertionError):
        record.code.assert_order("aten.add", "aten.mm", "aten.mul")


def test_without_edges_the_order_is_another(regional):
    record = run_ordered(regional, many_kinds, regional.randn(8, 8), regional.randn(8, 8), edges=())
    for case in (FORTH, BACK):
        with pytest.raises(CodeAssertionError):
            record.code.assert_order(*case.code)


def test_without_edges_the_order_in_a_branch_is_another(regional):
    record = run_ordered(regional, in_branches, regional.randn(8, 8), regional.randn(8, 8), edges=())
    with pytest.raises(CodeAssertionError):
        record.code.assert_order(*BRANCH_FORTH.code)


@region("r")
def flowing(x, w):
    return (x + 1) * 2


def test_an_edge_that_values_imply_costs_no_fusion(regional):
    adding = AddEdges(("add", "mul"))
    record = run_ordered(regional, flowing, regional.randn(8, 8), regional.randn(8, 8), edges=adding)
    record.code.assert_fused("aten.add", "aten.mul")
    assert [(len(report.added), len(report.implied)) for report in adding.reports] == [(0, 1)]


@region("r")
def inlined(x, w):
    first = x.cos()
    return first.exp(), w @ w, w + 1


def test_a_value_that_others_compute_for_themselves_is_waited_for(regional):
    """``exp`` takes ``cos`` into its own kernel; who waits for ``cos`` waits for a kernel all the same."""
    edges = (("cos", "mm"), ("mm", "add"))
    record = run_ordered(regional, inlined, regional.randn(8, 8), regional.randn(8, 8), edges=edges)
    record.code.assert_order("aten.cos", "aten.mm", "aten.add")


@region("r")
def inlined_behind(x, w):
    read_before = x.cos().exp()
    return read_before * (w @ w), w - 1


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("region_order",), dynamic=False)
def test_such_a_value_of_a_region_is_waited_for(regional):
    """Left alone, all but the product is one kernel behind it; edges are there before the region is compiled."""
    edges = (("cos", "mm"), ("mm", "sub"))
    record = run_ordered_regions(regional, inlined_behind, regional.randn(8, 8), regional.randn(8, 8), edges=edges)
    record.code.assert_order("aten.cos", "aten.mm", "aten.sub")
