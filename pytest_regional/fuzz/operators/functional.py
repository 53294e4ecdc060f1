"""Functions of ``torch.nn.functional`` and ``torch.linalg`` that are more than one operator of ATen.

Of linear algebra those are drawn whose results are unique, on matrices that are far from singular. No signs of
eigenvectors are compared, and of ``gaussian_nll_loss`` Dynamo makes two graphs: it raises where a variance is negative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytest_regional.fuzz.model.value_range import ValueRange, between
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Parameters,
    Picks,
    ProgramValue,
    Wanted,
    also,
    at_least,
    exact,
    floating,
    no_larger_than,
    nonempty,
    numeric,
    ranked,
    same_dtype,
    same_shape,
    without_gradient,
)


def _of_precision(value: ProgramValue, *before: ProgramValue) -> bool:
    return value.dtype in ("float32", "float64")


# Pooling and losses


def _pooled(a: ProgramValue) -> ValueRange:
    return between(0.0, 2 * a.value_range.size, a.value_range)


def _large_enough(value: ProgramValue, *before: ProgramValue) -> bool:
    return min(value.shape[1:]) >= 2


_POOLING = tuple(
    Operator(
        f"lp_pool{rank}d",
        "convolution",
        f"torch.nn.functional.lp_pool{rank}d({{a}}, 2.0, 2)",
        # The derivative of a root is infinite at 0.
        (also(floating, nonempty, ranked(rank + 1, rank + 2), _large_enough, at_least(0.1)),),
        _pooled,
    )
    for rank in (1, 2)
)


def _margin(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"margin": picks.one_of((1.0, 0.5))}


def _hinge(a: ProgramValue, b: ProgramValue, margin: float) -> ValueRange:
    return between(-a.value_range.size, 2 * a.value_range.size + 2 * margin, a.value_range)


_LOSSES = (
    Operator(
        "hinge_embedding_loss",
        "norm",
        "torch.nn.functional.hinge_embedding_loss({a}, {b}, {margin})",
        (also(floating, exact, nonempty), also(floating, exact, same_dtype, same_shape, without_gradient)),
        _hinge,
        _margin,
    ),
)


# Bags of rows


def _bag_mode(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"mode": picks.one_of(("sum", "mean"))}


def _index_of_bags(value: ProgramValue, a: ProgramValue) -> bool:
    held = value.value_range
    inside = held.low >= 0 and held.high < a.shape[0]
    return value.dtype == "int64" and not value.unbacked and value.rank == 2 and value.count > 0 and inside


def _bagged(a: ProgramValue, b: ProgramValue, mode: str) -> ValueRange:
    summed = a.value_range.summed(b.shape[1])
    return summed if mode == "sum" else replace(summed, low=a.value_range.low, high=a.value_range.high, unit=None)


_BAGS = (
    Operator(
        "embedding_bag",
        "index",
        "torch.nn.functional.embedding_bag({b}, {a}, mode={mode})",
        (also(floating, nonempty, ranked(2, 2), _of_precision), _index_of_bags),
        _bagged,
        _bag_mode,
    ),
)


# Linear algebra


def _square(value: ProgramValue, *before: ProgramValue) -> bool:
    return value.rank >= 2 and value.shape[-1] == value.shape[-2] <= 8


#: Positive definite, all eigenvalues from 2 upward.
_DEFINITE = "({a} @ {a}.mT + 2 * torch.eye({a}.shape[-1], dtype={a}.dtype, device={a}.device))"
_MATRIX = also(floating, nonempty, ranked(2, 3), _of_precision, _square, no_larger_than(3))


def _inverted(a: ProgramValue) -> ValueRange:
    return between(-0.5, 0.5, a.value_range)


def _largest(a: ProgramValue) -> float:
    return 2 + a.shape[-1] * a.value_range.size**2


def _rooted(a: ProgramValue) -> ValueRange:
    return between(-math.sqrt(_largest(a)), math.sqrt(_largest(a)), a.value_range)


def _solved(a: ProgramValue, b: ProgramValue) -> ValueRange:
    reach = b.value_range.size * math.sqrt(a.shape[-1]) / 2
    return between(-reach, reach, a.value_range, b.value_range)


def _log_determinant(a: ProgramValue) -> ValueRange:
    return between(0.0, a.shape[-1] * math.log(a.shape[-1] * _largest(a)), a.value_range)


def _algebra(name: str, template: str, value_range: Any, *others: Wanted) -> Operator:
    return Operator(name, "matmul", template, (_MATRIX, *others), value_range)


_ALGEBRA = (
    _algebra("inverse", f"torch.linalg.inv({_DEFINITE})", _inverted),
    _algebra("pseudoinverse", f"torch.linalg.pinv({_DEFINITE})", _inverted),
    _algebra("cholesky", f"torch.linalg.cholesky({_DEFINITE})", _rooted),
    _algebra(
        "solve",
        f"torch.linalg.solve({_DEFINITE}, {{b}})",
        _solved,
        also(floating, same_dtype, same_shape),
    ),
    _algebra("log_determinant", f"torch.linalg.slogdet({_DEFINITE})[1]", _log_determinant),
)


# Statistics of large numbers


def _dimension(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"dim": picks.below(values[0].rank), "keepdim": picks.flag()}


_STATISTICS = (
    Operator(
        "deviation_of_large",
        "reduction",
        "torch.std({a}, {dim}, correction=0, keepdim={keepdim})",
        (
            also(
                numeric,
                ranked(1),
                nonempty,
                _of_precision,
                at_least(1e15),
                without_gradient,
                lambda value, *before: min(value.shape) >= 2,
            ),
        ),
        lambda a, **parameters: between(0.0, a.value_range.high, a.value_range),
        _dimension,
    ),
)


# Complex numbers


def _imaginary(value: ProgramValue, a: ProgramValue) -> bool:
    return floating(value) and _of_precision(value) and value.dtype == a.dtype and value.shape == a.shape


def _joined(a: ProgramValue, b: ProgramValue) -> ValueRange:
    reach = max(a.value_range.size, b.value_range.size)
    return between(-reach, reach, a.value_range, b.value_range)


def _multiplied(a: ProgramValue, b: ProgramValue) -> ValueRange:
    reach = 2 * max(a.value_range.size, b.value_range.size) ** 2
    return between(-reach, reach, a.value_range, b.value_range)


_VIEWED = "torch.view_as_complex(torch.stack(({a}, {b}), -1))"

_COMPLEX = tuple(
    Operator(name, "pointwise", template, (floating, _imaginary), value_range)
    for name, template, value_range in (
        ("complex_view", f"torch.view_as_real({_VIEWED})", _joined),
        ("complex_view_conjugate", f"torch.view_as_real({_VIEWED}.conj() * {_VIEWED})", _multiplied),
        ("complex_view_imaginary", f"{_VIEWED}.mul(2.0).imag.clone()", lambda a, b: b.value_range.scaled(2.0)),
    )
)

OPERATORS = (*_POOLING, *_LOSSES, *_BAGS, *_ALGEBRA, *_STATISTICS, *_COMPLEX)
