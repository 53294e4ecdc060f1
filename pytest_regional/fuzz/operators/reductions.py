"""Reductions over one dimension, several, or all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pytest_regional.fuzz.facts import Facts
from pytest_regional.fuzz.operators.operator import Operator, Picks, Value, also, floating, nonempty, ranked


def _dimension(values: Sequence[Value], picks: Picks) -> dict[str, Any]:
    return {"dim": picks.below(values[0].rank), "keepdim": picks.flag()}


def _sum(a: Value, dim: int, keepdim: bool) -> Facts:
    return a.facts.summed(a.shape[dim])


def _mean(a: Value, **parameters: Any) -> Facts:
    return Facts(a.facts.low, a.facts.high, finite=a.facts.finite)


def _sum_all(a: Value) -> Facts:
    return a.facts.summed(math.prod(a.shape))


OPERATORS = (
    Operator(
        "sum",
        "reduction",
        "torch.sum({a}, {dim}, keepdim={keepdim})",
        (also(floating, ranked(1), nonempty),),
        _sum,
        _dimension,
    ),
    Operator(
        "mean",
        "reduction",
        "torch.mean({a}, {dim}, keepdim={keepdim})",
        (also(floating, ranked(1), nonempty),),
        _mean,
        _dimension,
    ),
    Operator("sum_all", "reduction", "torch.sum({a})", (also(floating, nonempty),), _sum_all),
)
