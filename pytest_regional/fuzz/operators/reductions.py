"""Reductions over one dimension, several, or all, and running ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from pytest_regional.fuzz.model.value_range import Facts, between, integers
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Parameters,
    Picks,
    Value,
    Wanted,
    also,
    anything,
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


_REDUCTIONS = (
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


def _norm_op(name: str, template: str, facts: Any, *operands: Wanted, choose: Any = None) -> Operator:
    fields = {} if choose is None else {"choose": choose}
    return Operator(name, "norm", template, operands, facts, **fields)


def _norm_dimension(values: Sequence[Value], picks: Picks) -> Parameters:
    return {"dim": picks.below(values[0].rank)}


def _normal(a: Value, *others: Value, **parameters: Any) -> Facts:
    reach = math.sqrt(max(a.count, 1))
    return between(-reach, reach, a.facts)


def _scaled(a: Value, b: Value, c: Value | None = None) -> Facts:
    reach = math.sqrt(max(a.count, 1)) * b.facts.size + (c.facts.size if c else 0.0)
    return between(-reach, reach, a.facts)


def _unit(a: Value, **parameters: Any) -> Facts:
    return between(0, 1, a.facts)


def _log_unit(a: Value, dim: int) -> Facts:
    return between(a.facts.low - a.facts.high - math.log(a.shape[dim]), 0, a.facts)


def _last(value: Value, a: Value, *others: Value) -> bool:
    return value.dtype == a.dtype and value.shape == a.shape[-1:]


def _channels(value: Value, a: Value, *others: Value) -> bool:
    return value.dtype == a.dtype and value.shape == a.shape[1:2]


_ROWS = also(floating, ranked(1), nonempty)
_PLANES = also(floating, ranked(3, 4), nonempty)

_NORMS = (
    _norm_op("softmax", "torch.softmax({a}, {dim})", _unit, _ROWS, choose=_norm_dimension),
    _norm_op("log_softmax", "torch.log_softmax({a}, {dim})", _log_unit, _ROWS, choose=_norm_dimension),
    _norm_op("layer_norm", "torch.nn.functional.layer_norm({a}, {a}.shape[-1:], eps=0.5)", _normal, _ROWS),
    _norm_op(
        "layer_norm_affine",
        "torch.nn.functional.layer_norm({a}, {b}.shape, {b}, {c}, eps=0.5)",
        _scaled,
        _ROWS,
        _last,
        _last,
    ),
    _norm_op("rms_norm", "torch.nn.functional.rms_norm({a}, {b}.shape, {b}, eps=0.5)", _scaled, _ROWS, _last),
    _norm_op("group_norm", "torch.nn.functional.group_norm({a}, 1, eps=0.5)", _normal, _PLANES),
    _norm_op(
        "batch_norm",
        "torch.nn.functional.batch_norm({a}, None, None, {b}, {c}, training=True, eps=0.5)",
        _scaled,
        also(_PLANES, lambda value, *before: value.shape[0] * value.shape[-1] > 1),
        _channels,
        _channels,
    ),
    _norm_op(
        "rms_by_hand",
        "{a} * torch.rsqrt({a}.pow(2).mean(-1, keepdim=True) + 0.5)",
        _normal,
        _ROWS,
    ),
    _norm_op(
        "cross_entropy",
        "torch.nn.functional.cross_entropy({a}, {b})",
        lambda a, b: between(0, a.facts.high - a.facts.low + math.log(a.shape[1]), a.facts),
        also(floating, ranked(2, 2), nonempty),
        lambda value, a: (
            value.dtype == "int64"
            and value.shape == a.shape[:1]
            and value.facts.low >= 0
            and value.facts.high < a.shape[1]
        ),
    ),
    _norm_op(
        "mse_loss",
        "torch.nn.functional.mse_loss({a}, {b})",
        lambda a, b: between(0, (a.facts.size + b.facts.size) ** 2, a.facts, b.facts),
        _ROWS,
        also(floating, lambda value, a: value.dtype == a.dtype and value.shape == a.shape),
    ),
)


_ORDERED = also(anything, distinct, ranked(1), nonempty)


def _sorting(
    name: str, template: str, facts: Any, results: int = 1, wanted: Wanted = _ORDERED, **fields: Any
) -> Operator:
    return Operator(
        name, "sort", template, (wanted,), facts, results=results, **{"choose": _sorted_dimension, **fields}
    )


def _sorted_dimension(values: Sequence[Value], picks: Picks) -> Parameters:
    return {"dim": picks.below(values[0].rank)}


def _some(values: Sequence[Value], picks: Picks) -> Parameters:
    dim = picks.below(values[0].rank)
    return {"k": 1 + picks.below(values[0].shape[dim]), "dim": dim}


def _nothing(values: Sequence[Value], picks: Picks) -> Parameters:
    return {}


def _places(a: Value, dim: int = 0, **parameters: Any) -> Facts:
    return integers(0, a.shape[dim] - 1, distinct=a.rank == 1)


def _both(a: Value, **parameters: Any) -> tuple[Facts, Facts]:
    return a.facts, _places(a, **parameters)


def _one_place(a: Value, dim: int) -> Facts:
    return integers(0, a.shape[dim] - 1, distinct=a.rank == 1)


_SORTS = (
    _sorting("sort", "torch.sort({a}, {dim})", _both, 2),
    _sorting("sort_descending", "torch.sort({a}, {dim}, descending=True)", _both, 2),
    _sorting("argsort", "torch.argsort({a}, {dim})", _places),
    _sorting("topk", "torch.topk({a}, {k}, {dim})", _both, 2, choose=_some),
    _sorting("argmax", "torch.argmax({a}, {dim})", _one_place),
    _sorting("argmin", "torch.argmin({a}, {dim}, keepdim=True)", _one_place),
    _sorting("max_dim", "torch.max({a}, {dim})", _both, 2),
    _sorting("median", "torch.median({a}, {dim})", _both, 2, wanted=also(_ORDERED, floating)),
    _sorting("kthvalue", "torch.kthvalue({a}, {k}, {dim})", _both, 2, wanted=also(_ORDERED, floating), choose=_some),
    _sorting(
        "bucketize",
        "torch.bucketize({a}.contiguous(), torch.tensor([-1.0, 0.0, 1.0], device={a}.device))",
        lambda a: integers(0, 3),
        wanted=also(floating, exact, lambda value, *before: value.dtype == "float32"),
        choose=_nothing,
    ),
)

OPERATORS = (*_REDUCTIONS, *_NORMS, *_SORTS)
