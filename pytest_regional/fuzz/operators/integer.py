"""Operators on integers and truth values, which are exact."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pytest_regional.fuzz.model.value_range import (
    DIGITS,
    LIMITS,
    ValueRange,
    difference,
    integers,
    product,
    total,
)
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
    _unary("neg_int", "-{a}", lambda a: integers(-a.high, -a.low)),
    _unary("abs_int", "torch.abs({a})", lambda a: integers(0, a.size)),
    _unary("shift_left", "{a} << 1", lambda a: integers(2 * a.low, 2 * a.high), at_least(0)),
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


def rounded_to(dtype: str, a: ProgramValue) -> ValueRange:
    """Return the range of ``a`` cast to a floating ``dtype``: two numbers may become one."""
    value_range = a.value_range.repeated()
    if value_range.unit is None or value_range.size <= value_range.unit * 2 ** DIGITS[dtype]:
        return value_range
    # Large integers are rounded once on the way to float32 and float64, but to float32 first on the way to less.
    return replace(value_range, unit=None, exact=value_range.exact and (a.is_float or dtype in ("float32", "float64")))


def _to_float(dtype: str) -> Operator:
    return Operator(
        f"to_{dtype}",
        "cast",
        f"{{a}}.to(torch.{dtype})",
        (also(anything, _other_than(dtype)),),
        functools.partial(rounded_to, dtype),
    )


def _to_integer(dtype: str) -> Operator:
    def fits(value: ProgramValue, *before: ProgramValue) -> bool:
        """Integers are cut to the bits that fit; of other floats than fit nothing is promised."""
        low, high = LIMITS[dtype]
        return not value.is_float or (low <= value.value_range.low and value.value_range.high <= high)

    wanted = also(exact, _other_than(dtype), fits)
    return Operator(f"to_{dtype}", "cast", f"{{a}}.to(torch.{dtype})", (wanted,), _whole_cast)


def _whole_cast(a: ProgramValue) -> ValueRange:
    return integers(int(a.value_range.low), int(a.value_range.high))


_CASTS = (
    *map(_to_float, ("float32", "float64", "bfloat16", "float16")),
    *map(_to_integer, ("int64", "int32", "int16", "int8", "uint8")),
    Operator("to_bool", "cast", "{a}.to(torch.bool)", (also(exact, _other_than("bool")),), lambda a: integers(0, 1)),
    Operator("float", "cast", "{a}.float()", (anything,), lambda a: a.value_range),
    Operator(
        "type_as",
        "cast",
        "{a}.type_as({b})",
        (real, real),
        lambda a, b: rounded_to(b.dtype, a),
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
