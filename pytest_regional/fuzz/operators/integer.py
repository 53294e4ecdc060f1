"""Operators on integers and truth values, which are exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytest_regional.fuzz.facts import Facts, difference, integers, product, total
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Picks,
    Value,
    also,
    at_least,
    boolean,
    broadcasts,
    integer,
    same_dtype,
)


def _whole(facts: Facts) -> Facts:
    return integers(facts.low, facts.high)


def _binary(name: str, call: str, facts: Callable[[Facts, Facts], Facts], *conditions: Any) -> Operator:
    return Operator(
        name,
        "integer",
        call,
        (also(integer, *conditions), also(integer, same_dtype, broadcasts, *conditions)),
        lambda a, b: _whole(facts(a.facts, b.facts)),
    )


def _unary(name: str, call: str, facts: Callable[[Facts], Facts], *conditions: Any) -> Operator:
    return Operator(name, "integer", call, (also(integer, *conditions),), lambda a: _whole(facts(a.facts)))


def _logical(name: str) -> Operator:
    return Operator(
        name,
        "integer",
        f"torch.{name}({{a}}, {{b}})",
        (boolean, also(boolean, broadcasts)),
        lambda a, b: integers(0, 1),
    )


def _all_bits(a: Facts, b: Facts) -> Facts:
    return integers(0, 2 ** int(max(a.high, b.high)).bit_length() - 1)


def _divisor(values: Sequence[Value], picks: Picks) -> dict[str, Any]:
    return {"value": picks.one_of((2, 3))}


OPERATORS = (
    _binary("add_int", "{a} + {b}", total),
    _binary("sub_int", "{a} - {b}", difference),
    _binary("mul_int", "{a} * {b}", product),
    _binary("bitwise_and", "{a} & {b}", _all_bits, at_least(0)),
    _binary("bitwise_xor", "{a} ^ {b}", _all_bits, at_least(0)),
    _binary("maximum_int", "torch.maximum({a}, {b})", lambda a, b: a.join(b)),
    _unary("neg_int", "-{a}", lambda a: Facts(-a.high, -a.low)),
    _unary("abs_int", "torch.abs({a})", lambda a: Facts(0, a.size)),
    _unary("shift_left", "{a} << 1", lambda a: Facts(2 * a.low, 2 * a.high), at_least(0)),
    Operator(
        "floor_divide",
        "integer",
        "{a} // {value}",
        (integer,),
        lambda a, value: integers(a.facts.low // value, a.facts.high // value),
        _divisor,
    ),
    Operator("remainder", "integer", "{a} % {value}", (integer,), lambda a, value: integers(0, value - 1), _divisor),
    _logical("logical_and"),
    _logical("logical_xor"),
    Operator("logical_not", "integer", "~{a}", (boolean,), lambda a: integers(0, 1)),
    Operator("sum_int", "integer", "torch.sum({a})", (integer,), lambda a: _whole(a.facts.summed(a.count))),
    Operator("count_true", "integer", "{a}.sum()", (boolean,), lambda a: integers(0, a.count)),
    Operator("any", "integer", "torch.any({a})", (boolean,), lambda a: integers(0, 1)),
    Operator("all", "integer", "torch.all({a})", (boolean,), lambda a: integers(0, 1)),
    Operator(
        "cumsum_int",
        "integer",
        "torch.cumsum({a}, 0)",
        (also(integer, lambda value, *before: value.rank >= 1),),
        lambda a: _whole(a.facts.summed(a.shape[0])),
    ),
)
