"""Regions that wait for each other: the partition graph is acyclic over all regions together."""

from __future__ import annotations

import pytest

from .annotations import in_region

pytestmark = pytest.mark.regional_compile(requires=("region_ids", "interleaved_regions"))


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


def test_two_crossed_regions(regional):
    regional.assert_parity(crossed, *operands(regional, 2))
    record = regional.run(crossed, *operands(regional, 2))

    # One of the two has to be split so that no cycle is left; both split would be one too many.
    assert sum(r.partitions for r in record.regions) == 3


def test_two_crossed_regions_train(regional):
    regional.assert_parity(crossed, *operands(regional, 2, requires_grad=True))


def test_a_ring_of_three(regional):
    regional.assert_parity(ring, *operands(regional, 3, requires_grad=True))
    record = regional.run(ring, *operands(regional, 3))

    # The ring is cut once: one region in two partitions, the other two whole.
    assert sum(r.partitions for r in record.regions) == 4


def backward_only(x, w):
    """Acyclic forward: region b follows region a; the backward of a's second output waits for b and feeds a."""
    with in_region("a"):
        h, k = x @ w, x @ w.T
    with in_region("b"):
        m = h @ w
    k = k.sin()
    with in_region("a"):
        n = k @ w
    with in_region("b"):
        return m + n @ w.T


def test_regions_that_cross_only_with_the_backward(regional):
    regional.assert_parity(backward_only, *operands(regional, 1, requires_grad=True))
