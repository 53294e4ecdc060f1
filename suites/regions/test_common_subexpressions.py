"""Eliminating common subexpressions moves no op across a region's border, whichever partitioner splits the graph."""

from __future__ import annotations

import pytest
import torch

from .annotations import in_region
from .variants import variant

pytestmark = pytest.mark.regional_compile(requires=("backward", "regions", "region_ids"))
BOTH = pytest.mark.parametrize(
    "partitioner",
    [
        "default",
        pytest.param(
            "min_cut",
            marks=pytest.mark.regional_known_failure(
                "torch",
                reason="merges an op with its twin across a border: docs/findings/min_cut_merges_across_border.py",
                torch=">=2.11",
            ),
        ),
    ],
)


def outside_and_inside(x, w):
    before = x @ w
    with in_region("r"):
        h = (x @ w) @ w
    return before.sin() + h


def in_two_regions(x, w):
    with in_region("one"):
        h = x @ w
    with in_region("two"):
        g = (x @ w) @ w
    return h.sin() + g


def observed(regional, program, partitioner):
    x, w = regional.randn(4, 8, requires_grad=True), regional.randn(8, 8, requires_grad=True)
    compiled = torch.compile(program, backend=variant(regional, "partitioner", partitioner), fullgraph=True)
    record = regional.run(compiled, x, w, as_is=True)
    torch.testing.assert_close(record.output, program(x, w))
    return record


@pytest.mark.quick
@BOTH
def test_twins_outside_and_inside_a_region(regional, partitioner):
    record = observed(regional, outside_and_inside, partitioner)
    assert record.region("r", "forward").ops.count("aten.mm.default") == 2


@BOTH
def test_twins_in_two_regions(regional, partitioner):
    record = observed(regional, in_two_regions, partitioner)
    assert record.region("one", "forward").ops.count("aten.mm.default") == 1
    assert record.region("two", "forward").ops.count("aten.mm.default") == 2


def test_twins_in_one_region_may_merge(regional):
    """The twin that shows that elimination is at work."""

    def program(x, w):
        with in_region("r"):
            h = (x @ w) + (x @ w)
        return h.sin()

    record = observed(regional, program, "min_cut")
    assert record.region("r", "forward").ops.count("aten.mm.default") == 1
