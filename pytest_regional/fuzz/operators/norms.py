"""Softmax and normalisations. A large eps keeps those of nearly equal values from enlarging rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pytest_regional.fuzz.facts import Facts, between
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Parameters,
    Picks,
    Value,
    Wanted,
    also,
    floating,
    nonempty,
    ranked,
)


def _norm(name: str, template: str, facts: Any, *operands: Wanted, choose: Any = None) -> Operator:
    fields = {} if choose is None else {"choose": choose}
    return Operator(name, "norm", template, operands, facts, **fields)


def _dimension(values: Sequence[Value], picks: Picks) -> Parameters:
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

OPERATORS = (
    _norm("softmax", "torch.softmax({a}, {dim})", _unit, _ROWS, choose=_dimension),
    _norm("log_softmax", "torch.log_softmax({a}, {dim})", _log_unit, _ROWS, choose=_dimension),
    _norm("layer_norm", "torch.nn.functional.layer_norm({a}, {a}.shape[-1:], eps=0.5)", _normal, _ROWS),
    _norm(
        "layer_norm_affine",
        "torch.nn.functional.layer_norm({a}, {b}.shape, {b}, {c}, eps=0.5)",
        _scaled,
        _ROWS,
        _last,
        _last,
    ),
    _norm("rms_norm", "torch.nn.functional.rms_norm({a}, {b}.shape, {b}, eps=0.5)", _scaled, _ROWS, _last),
    _norm("group_norm", "torch.nn.functional.group_norm({a}, 1, eps=0.5)", _normal, _PLANES),
    _norm(
        "batch_norm",
        "torch.nn.functional.batch_norm({a}, None, None, {b}, {c}, training=True, eps=0.5)",
        _scaled,
        also(_PLANES, lambda value, *before: value.shape[0] * value.shape[-1] > 1),
        _channels,
        _channels,
    ),
    _norm(
        "rms_by_hand",
        "{a} * torch.rsqrt({a}.pow(2).mean(-1, keepdim=True) + 0.5)",
        _normal,
        _ROWS,
    ),
    _norm(
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
    _norm(
        "mse_loss",
        "torch.nn.functional.mse_loss({a}, {b})",
        lambda a, b: between(0, (a.facts.size + b.facts.size) ** 2, a.facts, b.facts),
        _ROWS,
        also(floating, lambda value, a: value.dtype == a.dtype and value.shape == a.shape),
    ),
)
