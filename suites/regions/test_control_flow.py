"""Loops, scans, maps and conditions: inside a region, and holding a region in their bodies."""

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops import map as map_over

from .annotations import in_region

pytestmark = pytest.mark.regional_compile(requires=("nested_regions",))


def operands(regional, **options):
    """Positive, so that conditions hold, and stacked, so that loops have steps of their own."""
    x = regional.rand(3, 4, 8, **options)
    return x, regional.rand(8, 8, **options) / 3


def scan_in_region(x, w):
    with in_region("r"):
        carried, steps = scan(lambda c, e: (c @ w, e @ w), x[0], x)
    return carried.sin(), steps.cos()


def scan_around_region(x, w):
    def combine(carried, element):
        with in_region("r"):
            step = element @ w
        return carried * step, step.tanh()

    return scan(combine, x[0], x)


def map_in_region(x, w):
    with in_region("r"):
        h = map_over(lambda row, weight: row @ weight, x, w)
    return h.sin()


def map_around_region(x, w):
    def body(row, weight):
        with in_region("r"):
            h = row @ weight
        return h.tanh()

    return map_over(body, x, w)


def while_in_region(x, w):
    counter = torch.zeros((), dtype=torch.long, device=x.device)
    with in_region("r"):
        _, h = while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, h @ w), (counter, x[0]))
    return h.sin()


def while_around_region(x, w):
    def body(i, h):
        with in_region("r"):
            h = h @ w
        return i + 1, h.tanh()

    return while_loop(lambda i, h: i < 3, body, (torch.zeros((), dtype=torch.long, device=x.device), x[0]))


def condition_in_region(x, w):
    positive = x.sum() > 0
    with in_region("r"):
        h = torch.cond(positive, lambda a: a @ w, lambda a: (a + a) @ w, (x[0],))
    return h.sin()


def condition_around_region(x, w):
    def yes(a):
        with in_region("r"):
            h = a @ w
        return h.sin()

    return torch.cond(x.sum() > 0, yes, lambda a: a.cos(), (x[0],))


INSIDE = [scan_in_region, map_in_region, while_in_region, condition_in_region]
AROUND = [scan_around_region, map_around_region, while_around_region, condition_around_region]
BODY_IS_CALLED_UNBOXED = pytest.mark.regional_known_failure(
    "torch",
    reason="a compiled body takes a boxed list that no operator passes: docs/findings/region_in_cond_branch.py",
    torch=">=2.11",
)


@pytest.mark.parametrize("program", INSIDE, ids=lambda program: program.__name__)
def test_an_operator_inside_a_region(regional, program):
    regional.assert_parity(program, *operands(regional))


def test_a_condition_inside_a_region_trains(regional):
    regional.assert_parity(condition_in_region, *operands(regional, requires_grad=True))


def product_and_sum(left, right):
    """Combine two steps ``h -> a * h + b``, given as pairs ``(a, b)``, as a selective scan does."""
    return left[0] * right[0], left[1] * right[0] + right[1]


GAPS_ARE_LOST = pytest.mark.regional_known_failure(
    "torch",
    reason="a slice leaves a region without its gaps: docs/findings/gaps_leaving_region.py",
    torch=">=2.11",
)


@pytest.mark.parametrize("length", [3, pytest.param(4, marks=GAPS_ARE_LOST), pytest.param(7, marks=GAPS_ARE_LOST)])
def test_an_associative_scan_of_pairs_trains(regional, length):
    """Slices of each level are saved for the backward, whose region is compiled for the strides of the trace."""

    def program(a, b):
        with in_region("r"):
            h = associative_scan(product_and_sum, (a.sigmoid(), b), 1, combine_mode="generic")[1]
        return h.sin()

    regional.assert_parity(
        program, regional.randn(2, length, 3, requires_grad=True), regional.randn(2, length, 3, requires_grad=True)
    )


@pytest.mark.parametrize("program", [map_in_region, scan_in_region], ids=lambda program: program.__name__)
def test_a_loop_inside_a_region_trains(regional, program):
    regional.assert_parity(program, *operands(regional, requires_grad=True))


@pytest.mark.regional_compile(requires=("nested_regions", "region_counts"))
@BODY_IS_CALLED_UNBOXED
@pytest.mark.parametrize("program", AROUND, ids=lambda program: program.__name__)
def test_a_region_in_a_body(regional, program):
    regional.assert_parity(program, *operands(regional))
    # One compile serves all steps.
    assert regional.counters["region_compiles"] == 1


@BODY_IS_CALLED_UNBOXED
@pytest.mark.parametrize("program", [map_around_region, condition_around_region], ids=lambda program: program.__name__)
def test_a_region_in_a_body_trains(regional, program):
    regional.assert_parity(program, *operands(regional, requires_grad=True))


@pytest.mark.regional_compile(expects_regions=False)
def test_a_region_in_the_body_of_a_scan_that_trains(regional):
    """PyTorch traces the two graphs of such a scan without annotations: no backend sees a region there.

    docs/findings/bodies_lose_annotations.py; when this fails, PyTorch keeps them.
    """
    regional.assert_parity(scan_around_region, *operands(regional, requires_grad=True))
    assert regional.counters["region_compiles"] == 0


@BODY_IS_CALLED_UNBOXED
@pytest.mark.parametrize("program", [map_around_region, condition_around_region], ids=lambda program: program.__name__)
def test_gradients_of_a_region_in_a_body_are_not_annotated(regional, program):
    """PyTorch traces gradients of a body without annotations: no backend sees a region there.

    docs/findings/bodies_lose_annotations.py; when this fails, PyTorch keeps them.
    """
    record = regional.run(program, *operands(regional, requires_grad=True))
    assert [(r.name, r.graph) for r in record.regions] == [("r", "forward")]
