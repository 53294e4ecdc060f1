"""Graph breaks around and inside a region: each piece is compiled, and the values are those of eager."""

from __future__ import annotations

import pytest
import torch

from .annotations import in_region
from .variants import wants_gradient

pytestmark = pytest.mark.regional_compile(fullgraph=False)


def pair(regional, **options):
    return regional.randn(4, 8, **options), regional.randn(8, 8, **options) / 3


def around(x, w):
    h = x.sin()
    torch._dynamo.graph_break()
    with in_region("r"):
        h = h @ w
    torch._dynamo.graph_break()
    return h.cos()


def inside(x, w):
    with in_region("r"):
        h = x @ w
        torch._dynamo.graph_break()
        h = h @ w
    return h.cos()


def test_breaks_around_a_region(regional):
    regional.assert_parity(around, *pair(regional, requires_grad=wants_gradient(regional)))


@pytest.mark.regional_compile(fullgraph=False, expects_regions=False)
def test_a_break_inside_a_region(regional):
    """Dynamo cannot resume inside the annotation and leaves such a function eager: no backend sees it."""
    regional.assert_parity(inside, *pair(regional, requires_grad=wants_gradient(regional)))


@pytest.mark.regional_compile(fullgraph=False, requires=("regions", "region_counts"))
def test_a_region_between_two_breaks_is_compiled(regional):
    record = regional.run(around, *pair(regional))
    assert [(r.name, r.partitions) for r in record.regions] == [("r", 1)]
