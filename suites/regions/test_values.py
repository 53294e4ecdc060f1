"""What generated loops get wrong: odd sizes, NaN, infinities, negative zeros, casts, several values for one place."""

from __future__ import annotations

import math

import pytest
import torch

from .annotations import in_region
from .variants import wants_gradient

pytestmark = pytest.mark.regional_compile

#: Elements in all: 1, 5, 21, 2 * 33 (one more than a vector of any width) and 7 * 19.
SHAPES = [(1, 1), (5, 1), (3, 7), (2, 33), (7, 19)]

NONFINITE = (math.nan, math.inf, -math.inf, -0.0, 0.0, 1.0, -2.5)


def loops(x):
    """Pointwise, and reductions of rows, of columns and of everything."""
    with in_region("r"):
        h = torch.sin(x) * 2 + x
        rows, columns, total = h.sum(1), h.mean(0), (h * h).sum()
    return h.cos(), rows + 1, columns + 1, total + 1


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sizes_that_no_vector_divides(regional, shape):
    regional.assert_parity(loops, regional.randn(*shape, requires_grad=wants_gradient(regional)))


@pytest.mark.quick
def test_rows_of_a_square_are_not_its_columns(regional):
    regional.assert_parity(loops, regional.randn(6, 6, requires_grad=wants_gradient(regional)))


def arithmetic(x, y):
    with in_region("r"):
        return x + y, x * y, x - x, x / y


def comparisons(x, y):
    with in_region("r"):
        return torch.where(x > y, x, y), x == x, x.isnan(), x.isinf(), x.signbit()


def extremes(x, y):
    with in_region("r"):
        return torch.maximum(x, y), torch.minimum(x, y), x.clamp(-1, 1), x.amax(), x.amin(), x.argmax()


def rectified(x, y):
    with in_region("r"):
        return x.relu(), torch.sigmoid(y), torch.tanh(x), x.abs(), x.sign()


def sums(x, y):
    with in_region("r"):
        # Infinities become numbers of which any order of adding makes the same sum: of the largest ones none does.
        finite = torch.nan_to_num(x, posinf=8.0, neginf=-16.0)
        return x.sum(), x.cumsum(0), y.softmax(0), torch.nan_to_num(x), finite.sum()


PROGRAMS = [arithmetic, comparisons, extremes, rectified, sums]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_nan_infinities_and_negative_zeros(regional, program):
    x = torch.tensor(NONFINITE * 3, device=regional.device)
    regional.assert_parity(program, x, x.roll(3).clone())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.bool], ids=str)
def test_casts(regional, dtype):
    """There and back: what a narrow type drops is dropped, and no more."""

    def program(x):
        with in_region("r"):
            there = (x * 3).to(dtype)
            back = there.to(torch.float32)
        return there, back.sin()

    regional.assert_parity(program, regional.randn(3, 7))


def scattered(x, where):
    with in_region("r"):
        return x.new_zeros(4).scatter_add(0, where, x)


def added(x, where):
    with in_region("r"):
        return x.new_ones(4).index_add(0, where, x)


def put(x, where):
    with in_region("r"):
        return x.new_ones(4).index_put((where,), x, accumulate=True)


def gathered(x, where):
    with in_region("r"):
        return x[where] * 2


@pytest.mark.parametrize("program", [scattered, added, put, gathered], ids=lambda program: program.__name__)
def test_several_values_for_one_place(regional, program):
    """``gathered`` is one in its backward."""
    where = torch.tensor([0, 3, 0, 1, 3, 0], device=regional.device)
    regional.assert_parity(program, regional.randn(6, requires_grad=wants_gradient(regional)), where)
