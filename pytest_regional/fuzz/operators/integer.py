"""Operators on integers and truth values, which are exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytest_regional.fuzz.model.value_range import ValueRange, difference, integers, product, total
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Picks,
    ProgramValue,
    Wanted,
    also,
    anything,
    at_least,
    bits,
    boolean,
    broadcasts,
    exact,
    integer,
    real,
    same_dtype,
)


def _whole(value_range: ValueRange) -> ValueRange:
    return integers(value_range.low, value_range.high)


def _binary(
    name: str, call: str, value_range: Callable[[ValueRange, ValueRange], ValueRange], *conditions: Any
) -> Operator:
    return Operator(
        name,
        "integer",
        call,
        (also(integer, *conditions), also(integer, same_dtype, broadcasts, *conditions)),
        lambda a, b: _whole(value_range(a.value_range, b.value_range)),
    )


def _unary(name: str, call: str, value_range: Callable[[ValueRange], ValueRange], *conditions: Any) -> Operator:
    return Operator(name, "integer", call, (also(integer, *conditions),), lambda a: _whole(value_range(a.value_range)))


def _logical(name: str) -> Operator:
    return Operator(
        name,
        "integer",
        f"torch.{name}({{a}}, {{b}})",
        (boolean, also(boolean, broadcasts)),
        lambda a, b: integers(0, 1),
    )


def _all_bits(a: ValueRange, b: ValueRange) -> ValueRange:
    return integers(0, 2 ** int(max(a.high, b.high)).bit_length() - 1)


def _divisor(values: Sequence[ProgramValue], picks: Picks) -> dict[str, Any]:
    return {"value": picks.one_of((2, 3))}


_INTEGERS = (
    _binary("add_int", "{a} + {b}", total),
    _binary("sub_int", "{a} - {b}", difference),
    _binary("mul_int", "{a} * {b}", product),
    _binary("bitwise_and", "{a} & {b}", _all_bits, at_least(0)),
    _binary("bitwise_xor", "{a} ^ {b}", _all_bits, at_least(0)),
    _binary("maximum_int", "torch.maximum({a}, {b})", lambda a, b: a.join(b)),
    _unary("neg_int", "-{a}", lambda a: ValueRange(-a.high, -a.low)),
    _unary("abs_int", "torch.abs({a})", lambda a: ValueRange(0, a.size)),
    _unary("shift_left", "{a} << 1", lambda a: ValueRange(2 * a.low, 2 * a.high), at_least(0)),
    Operator(
        "floor_divide",
        "integer",
        "{a} // {value}",
        (integer,),
        lambda a, value: integers(a.value_range.low // value, a.value_range.high // value),
        _divisor,
    ),
    Operator("remainder", "integer", "{a} % {value}", (integer,), lambda a, value: integers(0, value - 1), _divisor),
    _logical("logical_and"),
    _logical("logical_xor"),
    Operator("logical_not", "integer", "~{a}", (boolean,), lambda a: integers(0, 1)),
    Operator("sum_int", "integer", "torch.sum({a})", (integer,), lambda a: _whole(a.value_range.summed(a.count))),
    Operator("count_true", "integer", "{a}.sum()", (boolean,), lambda a: integers(0, a.count)),
    Operator("any", "integer", "torch.any({a})", (boolean,), lambda a: integers(0, 1)),
    Operator("all", "integer", "torch.all({a})", (boolean,), lambda a: integers(0, 1)),
    Operator(
        "cumsum_int",
        "integer",
        "torch.cumsum({a}, 0)",
        (also(integer, lambda value, *before: value.rank >= 1),),
        lambda a: _whole(a.value_range.summed(a.shape[0])),
    ),
)


def _other_than(dtype: str) -> Wanted:
    return lambda value, *before: value.dtype != dtype


def _rounded(a: ProgramValue) -> ValueRange:
    # Two numbers may become one, and integers of up to 512 need 9 bits.
    return ValueRange(a.value_range.low, a.value_range.high, a.value_range.exact, finite=a.value_range.finite)


def _to_float(dtype: str) -> Operator:
    return Operator(f"to_{dtype}", "cast", f"{{a}}.to(torch.{dtype})", (also(anything, _other_than(dtype)),), _rounded)


def _to_integer(name: str, call: str, value_range: Any, *conditions: Wanted) -> Operator:
    return Operator(name, "cast", call, (also(exact, *conditions),), value_range)


def _whole_cast(a: ProgramValue) -> ValueRange:
    return integers(int(a.value_range.low), int(a.value_range.high))


_CASTS = (
    *map(_to_float, ("float32", "float64", "bfloat16", "float16")),
    _to_integer("to_int64", "{a}.to(torch.int64)", _whole_cast, _other_than("int64")),
    _to_integer("to_int32", "{a}.to(torch.int32)", _whole_cast, _other_than("int32")),
    _to_integer("to_bool", "{a}.to(torch.bool)", lambda a: integers(0, 1), _other_than("bool")),
    Operator("float", "cast", "{a}.float()", (anything,), lambda a: a.value_range),
    Operator(
        "type_as",
        "cast",
        "{a}.type_as({b})",
        (real, real),
        lambda a, b: _rounded(a),
    ),
    Operator(
        "view_bits",
        "cast",
        "{a}.view(torch.int32).view(torch.float32)",
        (also(real, bits, lambda value, *before: value.dtype == "float32" and not value.requires_grad),),
        lambda a: a.value_range,
    ),
)

OPERATORS = (*_INTEGERS, *_CASTS)
