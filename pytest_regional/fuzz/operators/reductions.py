"""Reductions over one dimension, several, or all, and running ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from pytest_regional.fuzz.facts import Facts, between
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Picks,
    Value,
    Wanted,
    also,
    at_least,
    distinct,
    exact,
    floating,
    nonempty,
    ranked,
    real,
    unkinked,
)


def _dimension(values: Sequence[Value], picks: Picks) -> dict[str, Any]:
    return {"dim": picks.below(values[0].rank), "keepdim": picks.flag()}


def _only_dimension(values: Sequence[Value], picks: Picks) -> dict[str, Any]:
    return {"dim": picks.below(values[0].rank)}


def _last_two(values: Sequence[Value], picks: Picks) -> dict[str, Any]:
    return {"dims": picks.one_of(((-1, -2), (0, -1))), "keepdim": picks.flag()}


def _along(name: str, facts: Callable[..., Facts], *conditions: Wanted, call: str = "") -> Operator:
    template = call or f"torch.{name}({{a}}, {{dim}}, keepdim={{keepdim}})"
    return Operator(name, "reduction", template, (also(ranked(1), nonempty, *conditions),), facts, _dimension)


def _running(name: str, facts: Callable[..., Facts], *conditions: Wanted) -> Operator:
    template = f"torch.{name}({{a}}, {{dim}})"
    return Operator(
        name, "reduction", template, (also(floating, ranked(1), nonempty, *conditions),), facts, _only_dimension
    )


def _whole(name: str, template: str, facts: Callable[[Value], Facts], *conditions: Wanted) -> Operator:
    return Operator(name, "reduction", template, (also(floating, nonempty, *conditions),), facts)


def _sum(a: Value, dim: int, **parameters: Any) -> Facts:
    return a.facts.summed(a.shape[dim])


def _mean(a: Value, **parameters: Any) -> Facts:
    return Facts(a.facts.low, a.facts.high, finite=a.facts.finite)


def _extreme(a: Value, **parameters: Any) -> Facts:
    return Facts(a.facts.low, a.facts.high, a.facts.exact, finite=a.facts.finite)


def _several(a: Value, dims: tuple[int, ...], **parameters: Any) -> Facts:
    return a.facts.summed(math.prod(a.shape[dim] for dim in dims))


def _variance(a: Value, **parameters: Any) -> Facts:
    return between(0.0, (a.facts.high - a.facts.low) ** 2, a.facts)


def _product(a: Value, dim: int, **parameters: Any) -> Facts:
    size = max(a.facts.size, 1.0) ** a.shape[dim]
    return between(min(0.0, a.facts.low, -size if a.facts.low < 0 else 0.0), size, a.facts)


def _logsumexp(a: Value, dim: int, **parameters: Any) -> Facts:
    return between(a.facts.low, a.facts.high + math.log(a.shape[dim]), a.facts)


def _log_running(a: Value, dim: int) -> Facts:
    return _logsumexp(a, dim)


def _norm(a: Value, dim: int, **parameters: Any) -> Facts:
    return between(a.facts.low, a.facts.size * math.sqrt(a.shape[dim]), a.facts)


def _small_enough(value: Value, *before: Value) -> bool:
    return max(value.shape) <= 4


def _spread(value: Value, *before: Value) -> bool:
    return min(value.shape) >= 2


OPERATORS = (
    _along("sum", _sum, real),
    _along("mean", _mean, floating),
    _whole("sum_all", "torch.sum({a})", lambda a: a.facts.summed(a.count)),
    _whole("mean_all", "{a}.mean()", _mean),
    Operator(
        "sum_dims",
        "reduction",
        "torch.sum({a}, {dims}, keepdim={keepdim})",
        (also(floating, ranked(2), nonempty),),
        _several,
        _last_two,
    ),
    Operator(
        "sum_float64",
        "reduction",
        "torch.sum({a}, -1, dtype=torch.float64)",
        (also(floating, ranked(1), nonempty),),
        lambda a: a.facts.summed(a.shape[-1]),
    ),
    _along("amax", _extreme, real, unkinked),
    _along("amin", _extreme, real, unkinked),
    _whole("max_all", "torch.max({a})", _extreme, unkinked),
    _along("prod", _product, floating, at_least(0.1), _small_enough),
    _along("logsumexp", _logsumexp, floating),
    _along("norm", _norm, floating, at_least(0.1), call="torch.linalg.vector_norm({a}, 2, {dim}, keepdim={keepdim})"),
    _along("var", _variance, floating, _spread, call="torch.var({a}, {dim}, correction=0, keepdim={keepdim})"),
    Operator(
        "var_mean",
        "reduction",
        "torch.var_mean({a}, {dim}, correction=0, keepdim={keepdim})",
        (also(floating, ranked(1), nonempty, _spread),),
        lambda a, **parameters: (_variance(a), _mean(a)),
        _dimension,
        results=2,
    ),
    Operator(
        "aminmax",
        "reduction",
        "torch.aminmax({a}, dim={dim}, keepdim={keepdim})",
        (also(floating, ranked(1), nonempty, unkinked),),
        lambda a, **parameters: (_extreme(a), _extreme(a)),
        _dimension,
        results=2,
    ),
    _running("cumsum", _sum),
    _running("cumprod", _product, at_least(0.1), _small_enough),
    _running("logcumsumexp", _log_running),
    Operator(
        "cummax",
        "reduction",
        "torch.cummax({a}, {dim})[0]",
        (also(floating, ranked(1), nonempty, distinct),),
        _extreme,
        _only_dimension,
    ),
    Operator(
        "count_nonzero",
        "reduction",
        "torch.count_nonzero({a})",
        (also(exact, nonempty),),
        lambda a: Facts(0, a.count, exact=True),
    ),
)
