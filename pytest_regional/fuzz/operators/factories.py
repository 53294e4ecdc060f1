"""Tensors out of nothing: zeros, ranges, literals, identity matrices. What compilers treat as constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_regional.fuzz.facts import Facts, integers
from pytest_regional.fuzz.operators.operator import Operator, Parameters, Picks, Value, Wanted, anything, real


def _factory(name: str, template: str, facts: Any, wanted: Wanted = real, choose: Any = None) -> Operator:
    fields = {} if choose is None else {"choose": choose}
    return Operator(name, "factory", template, (wanted,), facts, **fields)


def _value(values: Sequence[Value], picks: Picks) -> Parameters:
    return {"value": picks.one_of((1.0, 0.5, -2.0, 0.0))}


def _shape(values: Sequence[Value], picks: Picks) -> Parameters:
    return {"shape": values[0].shape if picks.flag() else (2, 3)}


def _shape_and_value(values: Sequence[Value], picks: Picks) -> Parameters:
    return {**_shape(values, picks), **_value(values, picks)}


def _size(values: Sequence[Value], picks: Picks) -> Parameters:
    return {"size": 2 + picks.below(4)}


def _constant(a: Value, value: float, **parameters: Any) -> Facts:
    return Facts(value, value, exact=True)


def _ones(a: Value, **parameters: Any) -> Facts:
    return Facts(1.0, 1.0, exact=True)


def _zeros(a: Value, **parameters: Any) -> Facts:
    return Facts(0.0, 0.0, exact=True)


def _counted(a: Value, size: int) -> Facts:
    return Facts(0, size - 1, exact=True, distinct=True)


OPERATORS = (
    _factory("zeros_like", "torch.zeros_like({a})", _zeros),
    _factory("ones_like", "torch.ones_like({a})", _ones),
    _factory("full_like", "torch.full_like({a}, {value})", _constant, choose=_value),
    _factory("new_zeros", "{a}.new_zeros({shape})", _zeros, choose=_shape),
    _factory("new_ones", "{a}.new_ones({shape})", _ones, choose=_shape),
    _factory("new_full", "{a}.new_full({shape}, {value})", _constant, choose=_shape_and_value),
    _factory(
        "new_tensor", "{a}.new_tensor([1.0, -2.0, 0.5, 1.5])", lambda a: Facts(-2, 1.5, exact=True, distinct=True)
    ),
    _factory(
        "literal",
        "torch.tensor([0.5, 1.0, -1.5, 2.0], device={a}.device)",
        lambda a: Facts(-1.5, 2, exact=True, distinct=True),
        anything,
    ),
    _factory(
        "literal_index", "torch.tensor([1, 0], device={a}.device)", lambda a: integers(0, 1, distinct=True), anything
    ),
    _factory("zeros", "torch.zeros({shape}, device={a}.device)", _zeros, anything, _shape),
    _factory(
        "arange",
        "torch.arange({size}, device={a}.device)",
        _counted,
        anything,
        _size,
    ),
    _factory(
        "arange_float",
        "torch.arange({size}, dtype={a}.dtype, device={a}.device)",
        _counted,
        choose=_size,
    ),
    _factory(
        "eye",
        "torch.eye({size}, dtype={a}.dtype, device={a}.device)",
        lambda a, size: Facts(0, 1, exact=True),
        choose=_size,
    ),
    _factory(
        "linspace",
        "torch.linspace(-1.0, 1.0, {size}, dtype={a}.dtype, device={a}.device)",
        lambda a, size: Facts(-1, 1),
        choose=_size,
    ),
    _factory("scalar", "torch.tensor(1.5, dtype={a}.dtype, device={a}.device)", lambda a: Facts(1.5, 1.5, exact=True)),
    _factory(
        "causal_mask",
        "torch.ones({size}, {size}, dtype=torch.bool, device={a}.device).tril()",
        lambda a, size: integers(0, 1),
        anything,
        _size,
    ),
    _factory("empty_filled", "torch.empty_like({a}).fill_({value})", _constant, choose=_value),
)
