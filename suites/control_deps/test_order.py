"""Edges hold in the generated code: behind Inductor's own graph passes, and in front of the region compiler."""

from __future__ import annotations

import pytest

from .edges import run_ordered, run_ordered_regions
from .programs import CASES

pytestmark = pytest.mark.regional_compile(requires=("inductor_code",), dynamic=False)

cases = pytest.mark.parametrize("case", CASES)


@cases
def test_edges_that_a_post_grad_pass_adds(regional, case):
    record = run_ordered(regional, case.program, regional.randn(8, 8), regional.randn(8, 8), edges=case.edges)
    record.code.assert_order(*case.code)
    record.code.assert_not_fused(*case.code)


@pytest.mark.regional_compile(requires=("region_order",))
@cases
def test_edges_that_a_pass_adds_before_regions_are_compiled(regional, case):
    record = run_ordered_regions(regional, case.program, regional.randn(8, 8), regional.randn(8, 8), edges=case.edges)
    record.code.assert_order(*case.code)
    record.code.assert_not_fused(*case.code)
