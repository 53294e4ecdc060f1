"""Sizes and numbers that depend on data. They need settings of Dynamo, so generators leave them out unless asked."""

from __future__ import annotations

from typing import Any

from pytest_regional.fuzz.facts import Facts, between, integers
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Value,
    also,
    anything,
    boolean,
    broadcasts,
    floating,
    nonempty,
)

#: No value of a generated program has more elements than this once it is flattened.
_MOST = 64


def _unbacked(value: Value, *before: Value) -> bool:
    return value.unbacked and value.is_float


def _selected(a: Value, b: Value) -> Facts:
    return b.facts.moved()


def _number(value: Value, *before: Value) -> bool:
    return value.is_integer and value.count == 1 and value.facts.exact and not value.unbacked


def _multiplied(a: Value, b: Value) -> Facts:
    ends = [x * y for x in (a.facts.low, a.facts.high) for y in (b.facts.low, b.facts.high)]
    return between(min(ends), max(ends), a.facts)


def _sized(name: str, template: str, facts: Any, *operands: Any, **fields: Any) -> Operator:
    return Operator(name, "data_dependent", template, operands, facts, **fields)


OPERATORS = (
    _sized(
        "masked_select",
        "torch.masked_select({b}, {a})",
        _selected,
        boolean,
        also(floating, nonempty, broadcasts),
        unbacked=True,
    ),
    _sized(
        "nonzero",
        "torch.nonzero({a}).flatten().to(torch.float32)",
        lambda a: Facts(0, max((0, *a.shape))),
        boolean,
        unbacked=True,
    ),
    _sized("unbacked_sin", "torch.sin({a})", lambda a: between(-1, 1, a.facts), _unbacked, unbacked=True),
    _sized("unbacked_mul", "{a} * 0.5", lambda a: a.facts.scaled(0.5), _unbacked, unbacked=True),
    _sized("unbacked_sum", "torch.sum({a})", lambda a: a.facts.summed(_MOST), _unbacked),
    _sized("unbacked_cat", "torch.cat([{a}, {a}])", lambda a: a.facts.repeated(), _unbacked, unbacked=True),
    _sized("mul_item", "{a} * {b}.item()", _multiplied, floating, _number),
    _sized(
        "count_item",
        "torch.full((2, 2), {a}.sum().item(), device={a}.device)",
        lambda a: integers(0, a.count),
        also(boolean, anything),
    ),
)
