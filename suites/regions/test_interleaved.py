"""Regions that wait for each other: the partition graph is acyclic over all regions together."""

from __future__ import annotations

import pytest
import torch

from .annotations import in_region

pytestmark = pytest.mark.regional_compile(requires=("region_ids", "interleaved_regions"))

# torch 2.11 knows no region ids, so has nothing to refuse: there the backend disclaims region_ids.
REFUSED = pytest.mark.regional_known_failure(
    "torch",
    reason="each region is partitioned alone, and the cycle refused: docs/findings/interleaved_regions.py",
    torch=">=2.13",
)


def crossed(x, y, w):
    """a1 -> b2 and b1 -> a2."""
    with in_region("a"):
        a1 = x @ w
    with in_region("b"):
        b1 = y @ w
        b2 = a1 @ w.T
    with in_region("a"):
        a2 = b1 @ w.T
    return a2, b2


def ring(x, y, z, w):
    """Three regions, each of whose second halves waits for another's first half."""
    with in_region("a"):
        a1 = x @ w
    with in_region("b"):
        b1 = y @ w
    with in_region("c"):
        c1 = z @ w
        c2 = b1 @ w.T
    with in_region("b"):
        b2 = a1 @ w.T
    with in_region("a"):
        a2 = c1 @ w.T
    return a2, b2, c2


def operands(regional, count, **options):
    inputs = [regional.randn(4, 8, **options) for _ in range(count)]
    return (*inputs, regional.randn(8, 8, **options) / 3)


@pytest.mark.quick
@REFUSED
def test_two_crossed_regions(regional):
    regional.assert_parity(crossed, *operands(regional, 2))
    record = regional.run(crossed, *operands(regional, 2))

    # One of the two has to be split so that no cycle is left; both split would be one too many.
    if regional.supports("region_counts") and regional.supports("few_partitions"):
        assert sum(r.partitions for r in record.regions) == 3


@pytest.mark.quick
@REFUSED
def test_two_crossed_regions_train(regional):
    regional.assert_parity(crossed, *operands(regional, 2, requires_grad=True))


@REFUSED
def test_a_ring_of_three(regional):
    regional.assert_parity(ring, *operands(regional, 3, requires_grad=True))
    record = regional.run(ring, *operands(regional, 3))

    # The ring is cut once: one region in two partitions, the other two whole.
    if regional.supports("region_counts") and regional.supports("few_partitions"):
        assert sum(r.partitions for r in record.regions) == 4


class CrossedBackward(torch.autograd.Function):
    """One product in the forward; a backward in which two regions wait for each other."""

    @staticmethod
    def forward(context, x, w):
        context.save_for_backward(w)
        return x @ w

    @staticmethod
    def backward(context, gradient):
        (w,) = context.saved_tensors
        with in_region("a"):
            a1 = gradient @ w
        with in_region("b"):
            b1 = gradient @ w.t()
            b2 = a1 @ w
        with in_region("a"):
            a2 = b1 @ w
        return a2 + b2, None


@REFUSED
def test_regions_that_cross_only_in_the_backward(regional):
    def program(x, w):
        return CrossedBackward.apply(x, w).sin()

    regional.assert_parity(program, *operands(regional, 1, requires_grad=True))
    record = regional.run(program, *operands(regional, 1, requires_grad=True))
    assert {r.graph for r in record.regions} == {"backward"}
    if regional.supports("region_counts") and regional.supports("few_partitions"):
        assert sum(r.partitions for r in record.regions) == 3


def placed_late(x, w):
    """Some nodes of the region could run earlier than the program has them; ``u`` reads another such node, ``j``."""
    with in_region("r"):
        a0 = x.sin()
    e0 = a0.cos()
    with in_region("r"):
        j = e0 * 2
        a1 = e0.sin()
    e1 = a1.cos()
    with in_region("r"):
        i = w + 1
        a2 = e1.sin()
        u = j * i
    e2 = a2.cos()
    with in_region("r"):
        return u * e2


@pytest.mark.parametrize("requires_grad", [False, True], ids=["inference", "training"])
def test_nodes_that_several_partitions_could_take(regional, requires_grad):
    """A plan that moves ``u`` and not ``j``, which it reads, makes two partitions wait for each other."""
    x, w = (regional.randn(4, 8, requires_grad=requires_grad) for _ in range(2))
    regional.assert_parity(placed_late, x, w)
