"""Order and positions: only of values without ties, on whose bits every implementation agrees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_regional.fuzz.facts import Facts, integers
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Parameters,
    Picks,
    Value,
    Wanted,
    also,
    anything,
    distinct,
    exact,
    floating,
    nonempty,
    ranked,
)

_ORDERED = also(anything, distinct, ranked(1), nonempty)


def _sorting(
    name: str, template: str, facts: Any, results: int = 1, wanted: Wanted = _ORDERED, **fields: Any
) -> Operator:
    return Operator(name, "sort", template, (wanted,), facts, results=results, **{"choose": _dimension, **fields})


def _dimension(values: Sequence[Value], picks: Picks) -> Parameters:
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


OPERATORS = (
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
