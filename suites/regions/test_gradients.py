"""Gradients of an op belong to its region, whatever autograd makes of the op, and so do the sums within the region."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from .annotations import in_region

pytestmark = pytest.mark.regional_compile(requires=("backward", "regions", "region_ids"))

SUMS_STAY_OUTSIDE = pytest.mark.regional_known_failure(
    "torch",
    reason="sums of gradients are in no region and divide it: docs/findings/sum_of_gradients_divides_region.py",
    torch=">=2.13",
)
METADATA_IS_LOST = pytest.mark.regional_known_failure(
    "torch",
    reason="gradients of an op in place lose its annotation: docs/findings/gradient_of_op_in_place_leaves_region.py",
    torch=">=2.13",
)


def pair(regional):
    """Return positive operands: some are divided by."""
    return regional.rand(4, 4, requires_grad=True), regional.rand(4, 4, requires_grad=True)


def used_twice(x, w):
    with in_region("r"):
        h = x @ w
        return h.sin() + h.cos()


def used_three_times(x, w):
    with in_region("r"):
        h = x @ w
        return h.sin() + h.cos() * h


def returned_and_used(x, w):
    with in_region("r"):
        h = x @ w
        k = h.sin()
    return k, h.cos()


def weight_used_twice(x, w):
    with in_region("r"):
        return ((x @ w).sin() @ w).cos()


def residual(x, w):
    h = x.sin()
    with in_region("r"):
        h = h + (h @ w).tanh()
        h = h + (h.cos() @ w).tanh()
    return h.exp()


def recomputed(x, w):
    return checkpoint(used_three_times, x, w, use_reentrant=False)


SUMS = [used_twice, used_three_times, returned_and_used, residual, recomputed]


@pytest.mark.parametrize("program", [*SUMS, weight_used_twice], ids=lambda program: program.__name__)
def test_parity_where_gradients_are_added(regional, program):
    regional.assert_parity(program, *pair(regional))


@pytest.mark.regional_compile(requires=("backward", "regions", "region_ids", "region_counts", "few_partitions"))
@SUMS_STAY_OUTSIDE
@pytest.mark.parametrize("program", SUMS, ids=lambda program: program.__name__)
def test_sums_of_gradients_do_not_divide_a_region(regional, program):
    record = regional.run(program, *pair(regional))
    assert record.region("r", "backward").partitions == 1


def divided(y, w):
    y /= w.sum(-1, keepdim=True)


def scaled_slice(y, w):
    y[0].mul_(w[1])


def columns(y, w):
    y[:, 1:3] *= w[:, :2]


def activation(y, w):
    torch.nn.functional.silu(y, inplace=True)


def in_place(write):
    """Return a program that does ``write`` in the middle of a region."""

    def program(x, w):
        with in_region("r"):
            y = x @ w
            write(y, w)
            return y.sin() @ w

    return program


WRITES = [divided, scaled_slice, columns, activation]


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
def test_parity_of_ops_in_place(regional, write):
    regional.assert_parity(in_place(write), *pair(regional))


@pytest.mark.regional_compile(requires=("backward", "regions", "region_ids", "region_counts", "few_partitions"))
@METADATA_IS_LOST
@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
def test_gradients_of_ops_in_place_do_not_divide_a_region(regional, write):
    record = regional.run(in_place(write), *pair(regional))
    assert record.region("r", "backward").partitions == 1


@pytest.mark.regional_compile(requires=("backward", "regions", "region_ids", "region_counts"))
def test_a_weight_of_two_regions(regional):
    """Its two gradients are added up between the regions: each backward is one partition, whoever adds."""

    def program(x, w):
        with in_region("a"):
            h = x @ w
        with in_region("b"):
            return h.sin() @ w

    regional.assert_parity(program, *pair(regional))
    record = regional.run(program, *pair(regional))
    assert [record.region(name, "backward").partitions for name in ("a", "b")] == [1, 1]


def view_alone(x, w):
    h = x.sin()
    with in_region("view"):
        h = h.t()
    return h @ w


@pytest.mark.regional_compile(requires=("backward", "regions", "region_ids", "region_counts"))
def test_a_region_of_a_view_alone(regional):
    """Not vacuous: the view is what was asked for. Whether a backward of views is compiled is left to the backend."""
    regional.assert_parity(view_alone, *pair(regional))
    record = regional.run(view_alone, *pair(regional))
    assert record.region("view", "forward").partitions == 1


def view_between(x, w):
    with in_region("r"):
        h = x @ w
    h = h.sin()
    with in_region("r"):
        h = h.t()
    h = h.cos()
    with in_region("r"):
        return h @ w


@pytest.mark.regional_compile(requires=("backward", "regions", "region_ids", "region_counts"))
def test_a_view_between_two_partitions(regional):
    regional.assert_parity(view_between, *pair(regional))
    record = regional.run(view_between, *pair(regional))
    # Compiled alone or left eager.
    assert record.region("r", "forward").partitions in (2, 3)
