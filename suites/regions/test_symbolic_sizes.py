"""Sizes known only at run time: backed, unbacked, and checks of them, inside regions and across their borders."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.decorators import mark_unbacked

from .annotations import in_region

pytestmark = pytest.mark.regional_compile(dynamic=True, requires=("dynamic_shapes",))


@pytest.fixture(autouse=True)
def _capture_sizes_from_data():
    """Let Dynamo trace ``item`` and ``nonzero`` instead of breaking the graph."""
    settings = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    with torch._dynamo.config.patch(settings):
        yield


def nonzero_enters(x, w):
    rows = (x[:, 0] > 0).nonzero().squeeze(1)
    positive = x[rows]
    with in_region("r"):
        h = positive @ w
    return h.sin()


def nonzero_leaves(x, w):
    with in_region("r"):
        rows = (x[:, 0] > 0).nonzero().squeeze(1)
    return x[rows] @ w


def item_enters(x, w):
    # Of normal numbers, whichever are drawn, some are above -1: the check holds.
    count = (x[:, 0] > -1).sum().item()
    torch._check(count >= 1)
    torch._check(count <= x.shape[0])
    head = x.narrow(0, 0, count)
    with in_region("r"):
        h = head @ w
    return h.sin()


def item_in_region(x, w):
    flags = (x[:, 0] > -1).sum()
    with in_region("r"):
        count = flags.item()
        torch._check(count >= 1)
        torch._check(count <= x.shape[0])
        h = x.narrow(0, 0, count) @ w
    return h.sin()


def item_crosses_two_regions(x, w):
    count = (x[:, 0] > -1).sum().item()
    torch._check(count >= 1)
    torch._check(count <= x.shape[0])
    with in_region("one"):
        h = x.narrow(0, 0, count) @ w
    g = h.sin()
    with in_region("two"):
        return g @ w.T


def backed_arithmetic(x, w):
    half = x.shape[0] // 2
    with in_region("r"):
        h = x[:half] @ w
    return h.reshape(half * 2, -1), x.shape[0] + half


def size_made_in_region(x, w):
    with in_region("r"):
        h = torch.cat([x, x]) @ w
    return h.view(x.shape[0], 2, -1).sin()


def check_on_a_backed_size(x, w):
    with in_region("r"):
        torch._check(x.shape[0] > 1)
        h = x @ w
    return h.sin()


def two_regions_of_two_sizes(x, w):
    with in_region("one"):
        h = x @ w
    g = torch.cat([h, h[1:]]).sin()
    with in_region("two"):
        return g @ w


SIZE_IS_AN_EXPRESSION = pytest.mark.regional_known_failure(
    "torch",
    reason="a region input whose size is an expression fails in Inductor: docs/findings/expression_size_input.py",
    torch="<2.15",
)
INFERENCE = [
    nonzero_enters,
    nonzero_leaves,
    item_enters,
    item_in_region,
    item_crosses_two_regions,
    backed_arithmetic,
    size_made_in_region,
    check_on_a_backed_size,
    pytest.param(two_regions_of_two_sizes, marks=SIZE_IS_AN_EXPRESSION),
]


@pytest.mark.parametrize("program", INFERENCE, ids=lambda program: program.__name__)
def test_parity(regional, program):
    regional.assert_parity(program, regional.randn(6, 8), regional.randn(8, 8))


@pytest.mark.regional_compile(requires=("dynamic_shapes", "backward"))
@pytest.mark.parametrize("program", [nonzero_enters, item_enters, size_made_in_region], ids=lambda p: p.__name__)
def test_training(regional, program):
    regional.assert_parity(program, regional.randn(6, 8, requires_grad=True), regional.randn(8, 8, requires_grad=True))


@pytest.mark.parametrize("program", INFERENCE, ids=lambda program: program.__name__)
def test_later_calls_of_other_sizes(regional, program):
    """What a region is told of sizes is told at each call."""
    compiled, w = regional.compile(program), regional.randn(8, 8)

    def same_as_eager(rows):
        regional.assert_parity(program, regional.randn(rows, 8), w, compiled=lambda _: compiled)

    same_as_eager(6)
    with regional.expect(recompiles=0, region_compiles=0):
        for rows in (16, 9):
            same_as_eager(rows)


def test_a_failed_check_in_a_region_is_raised(regional):
    compiled = regional.compile(item_in_region)
    w = regional.randn(8, 8)
    compiled(regional.rand(6, 8), w)
    with pytest.raises(RuntimeError, match="u0"):
        compiled(-1 - regional.rand(6, 8), w)


@SIZE_IS_AN_EXPRESSION
def test_an_unbacked_size_marked_by_the_caller(regional):
    def program(x, w):
        doubled = torch.cat([x, x])
        with in_region("r"):
            h = doubled @ w
        return h.sin()

    x, w = regional.randn(4, 8), regional.randn(8, 8)
    mark_unbacked(x, 0)
    regional.assert_parity(program, x, w)
