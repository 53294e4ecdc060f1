"""Reductions, running ones too; normalizations; and sorting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pytest_regional.fuzz.model.arguments import ValueRange, between, integers
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Parameters,
    Picks,
    ProgramValue,
    Wanted,
    also,
    anything,
    at_least,
    distinct,
    each_in_its_place,
    exact,
    floating,
    nonempty,
    numeric,
    ranked,
    real,
    unkinked,
)


def _dimension(values: Sequence[ProgramValue], picks: Picks) -> dict[str, Any]:
    return {"dim": picks.below(values[0].rank), "keepdim": picks.flag()}


def _only_dimension(values: Sequence[ProgramValue], picks: Picks) -> dict[str, Any]:
    return {"dim": picks.below(values[0].rank)}


def _last_two(values: Sequence[ProgramValue], picks: Picks) -> dict[str, Any]:
    return {"dims": picks.one_of(((-1, -2), (0, -1))), "keepdim": picks.flag()}


def _along(name: str, value_range: Callable[..., ValueRange], *conditions: Wanted, call: str = "") -> Operator:
    template = call or f"torch.{name}({{a}}, {{dim}}, keepdim={{keepdim}})"
    return Operator(name, "reduction", template, (also(ranked(1), nonempty, *conditions),), value_range, _dimension)


def _running(name: str, value_range: Callable[..., ValueRange], *conditions: Wanted) -> Operator:
    template = f"torch.{name}({{a}}, {{dim}})"
    return Operator(
        name, "reduction", template, (also(numeric, ranked(1), nonempty, *conditions),), value_range, _only_dimension
    )


def _whole(
    name: str, template: str, value_range: Callable[[ProgramValue], ValueRange], *conditions: Wanted
) -> Operator:
    return Operator(name, "reduction", template, (also(numeric, nonempty, *conditions),), value_range)


def _sum(a: ProgramValue, dim: int, **parameters: Any) -> ValueRange:
    return a.value_range.summed(a.shape[dim])


def _mean(a: ProgramValue, dim: int | None = None, **parameters: Any) -> ValueRange:
    """Return the range of means: of 2, 4, 8 ... elements they are as exact as the sums."""
    count = max(a.count if dim is None else a.shape[dim], 1)
    summed = a.value_range.summed(count)
    unit = None if summed.unit is None or count & (count - 1) else summed.unit / count
    return replace(summed, low=a.value_range.low, high=a.value_range.high, unit=unit)


def _extreme(a: ProgramValue, **parameters: Any) -> ValueRange:
    # Which of 0.0 and -0.0 is the larger one is nowhere said.
    return replace(a.value_range.repeated(), zeros=False)


def _several(a: ProgramValue, dims: tuple[int, ...], **parameters: Any) -> ValueRange:
    return a.value_range.summed(math.prod(a.shape[dim] for dim in dims))


def _variance(a: ProgramValue, **parameters: Any) -> ValueRange:
    return between(0.0, (a.value_range.high - a.value_range.low) ** 2, a.value_range)


def _product(a: ProgramValue, dim: int, **parameters: Any) -> ValueRange:
    size = max(a.value_range.size, 1.0) ** a.shape[dim]
    bounds = between(min(0.0, a.value_range.low, -size if a.value_range.low < 0 else 0.0), size, a.value_range)
    unit = None if a.value_range.unit is None else min(a.value_range.unit, 1.0) ** a.shape[dim]
    return replace(bounds, unit=unit, zeros=False)


def _logsumexp(a: ProgramValue, dim: int, **parameters: Any) -> ValueRange:
    return between(a.value_range.low, a.value_range.high + math.log(a.shape[dim]), a.value_range)


def _log_running(a: ProgramValue, dim: int) -> ValueRange:
    return _logsumexp(a, dim)


def _norm(a: ProgramValue, dim: int, **parameters: Any) -> ValueRange:
    return between(a.value_range.low, a.value_range.size * math.sqrt(a.shape[dim]), a.value_range)


def _small_enough(value: ProgramValue, *before: ProgramValue) -> bool:
    return max(value.shape) <= 4


def _whole_or_positive(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want elements whose products, and derivatives of them, no order of evaluation divides by zero for."""
    return value.value_range.low >= 0.1 or (value.value_range.unit is not None and not value.requires_grad)


def _spread(value: ProgramValue, *before: ProgramValue) -> bool:
    return min(value.shape) >= 2


_REDUCTIONS = (
    _along("sum", _sum, real),
    _along("mean", _mean, numeric),
    _whole("sum_all", "torch.sum({a})", lambda a: a.value_range.summed(a.count)),
    _whole("mean_all", "{a}.mean()", _mean),
    Operator(
        "sum_dims",
        "reduction",
        "torch.sum({a}, {dims}, keepdim={keepdim})",
        (also(numeric, ranked(2), nonempty),),
        _several,
        _last_two,
    ),
    Operator(
        "sum_float64",
        "reduction",
        "torch.sum({a}, -1, dtype=torch.float64)",
        (also(numeric, ranked(1), nonempty),),
        lambda a: a.value_range.summed(a.shape[-1]),
    ),
    _along("amax", _extreme, real, unkinked),
    _along("amin", _extreme, real, unkinked),
    _whole("max_all", "torch.max({a})", _extreme, unkinked),
    _along("prod", _product, numeric, _whole_or_positive, _small_enough),
    _along("logsumexp", _logsumexp, floating),
    _along("norm", _norm, floating, at_least(0.1), call="torch.linalg.vector_norm({a}, 2, {dim}, keepdim={keepdim})"),
    _along("var", _variance, floating, _spread, call="torch.var({a}, {dim}, correction=0, keepdim={keepdim})"),
    Operator(
        "var_mean",
        "reduction",
        "torch.var_mean({a}, {dim}, correction=0, keepdim={keepdim})",
        (also(floating, ranked(1), nonempty, _spread),),
        lambda a, dim, **parameters: (_variance(a), _mean(a, dim)),
        _dimension,
        results=2,
    ),
    Operator(
        "aminmax",
        "reduction",
        "torch.aminmax({a}, dim={dim}, keepdim={keepdim})",
        (also(numeric, ranked(1), nonempty, unkinked),),
        lambda a, **parameters: (_extreme(a), _extreme(a)),
        _dimension,
        results=2,
    ),
    _running("cumsum", _sum),
    _running("cumprod", _product, _whole_or_positive, _small_enough),
    _running("logcumsumexp", _log_running, floating),
    Operator(
        "cummax",
        "reduction",
        "torch.cummax({a}, {dim})[0]",
        (also(numeric, ranked(1), nonempty, distinct),),
        _extreme,
        _only_dimension,
    ),
    Operator(
        "count_nonzero",
        "reduction",
        "torch.count_nonzero({a})",
        (also(exact, nonempty),),
        lambda a: integers(0, a.count),
    ),
)


def _norm_op(name: str, template: str, value_range: Any, *operands: Wanted, choose: Any = None) -> Operator:
    fields = {} if choose is None else {"choose": choose}
    return Operator(name, "norm", template, operands, value_range, **fields)


def _norm_dimension(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"dim": picks.below(values[0].rank)}


def _normal(a: ProgramValue, *others: ProgramValue, **parameters: Any) -> ValueRange:
    reach = math.sqrt(max(a.count, 1))
    return between(-reach, reach, a.value_range)


def _scaled(a: ProgramValue, b: ProgramValue, c: ProgramValue | None = None) -> ValueRange:
    reach = math.sqrt(max(a.count, 1)) * b.value_range.size + (c.value_range.size if c else 0.0)
    return between(-reach, reach, a.value_range)


def _unit(a: ProgramValue, **parameters: Any) -> ValueRange:
    return between(0, 1, a.value_range)


def _log_unit(a: ProgramValue, dim: int) -> ValueRange:
    return between(a.value_range.low - a.value_range.high - math.log(a.shape[dim]), 0, a.value_range)


def _last(value: ProgramValue, a: ProgramValue, *others: ProgramValue) -> bool:
    return value.dtype == a.dtype and value.shape == a.shape[-1:]


def _channels(value: ProgramValue, a: ProgramValue, *others: ProgramValue) -> bool:
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
        lambda a, b: between(0, a.value_range.high - a.value_range.low + math.log(a.shape[1]), a.value_range),
        also(floating, ranked(2, 2), nonempty),
        lambda value, a: (
            value.dtype == "int64"
            and value.shape == a.shape[:1]
            and value.value_range.low >= 0
            and value.value_range.high < a.shape[1]
        ),
    ),
    _norm_op(
        "mse_loss",
        "torch.nn.functional.mse_loss({a}, {b})",
        lambda a, b: between(0, (a.value_range.size + b.value_range.size) ** 2, a.value_range, b.value_range),
        _ROWS,
        also(floating, lambda value, a: value.dtype == a.dtype and value.shape == a.shape),
    ),
)


_ORDERED = also(anything, distinct, ranked(1), nonempty)


def _sorting(
    name: str, template: str, value_range: Any, results: int = 1, wanted: Wanted = _ORDERED, **fields: Any
) -> Operator:
    return Operator(
        name, "sort", template, (wanted,), value_range, results=results, **{"choose": _sorted_dimension, **fields}
    )


def _sorted_dimension(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"dim": picks.below(values[0].rank)}


def _some(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    dim = picks.below(values[0].rank)
    return {"k": 1 + picks.below(values[0].shape[dim]), "dim": dim}


def _nothing(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {}


def _places(a: ProgramValue, dim: int = 0, **parameters: Any) -> ValueRange:
    return integers(0, a.shape[dim] - 1, distinct=a.rank == 1)


def _both(a: ProgramValue, **parameters: Any) -> tuple[ValueRange, ValueRange]:
    return a.value_range, _places(a, **parameters)


def _one_place(a: ProgramValue, dim: int) -> ValueRange:
    return integers(0, a.shape[dim] - 1, distinct=a.rank == 1)


_SORTS = (
    _sorting("sort", "torch.sort({a}, {dim})", _both, 2),
    _sorting("sort_descending", "torch.sort({a}, {dim}, descending=True)", _both, 2),
    _sorting("argsort", "torch.argsort({a}, {dim})", _places),
    _sorting("topk", "torch.topk({a}, {k}, {dim})", _both, 2, choose=_some),
    _sorting("argmax", "torch.argmax({a}, {dim})", _one_place),
    _sorting("argmin", "torch.argmin({a}, {dim}, keepdim=True)", _one_place),
    _sorting("max_dim", "torch.max({a}, {dim})", _both, 2),
    _sorting("median", "torch.median({a}, {dim})", _both, 2, wanted=also(_ORDERED, numeric, each_in_its_place)),
    _sorting("kthvalue", "torch.kthvalue({a}, {k}, {dim})", _both, 2, wanted=also(_ORDERED, numeric), choose=_some),
    _sorting(
        "bucketize",
        "torch.bucketize({a}.contiguous(), torch.tensor([-1.0, 0.0, 1.0], device={a}.device))",
        lambda a: integers(0, 3),
        wanted=also(numeric, exact, lambda value, *before: value.dtype == "float32"),
        choose=_nothing,
    ),
)

OPERATORS = (*_REDUCTIONS, *_NORMS, *_SORTS)
