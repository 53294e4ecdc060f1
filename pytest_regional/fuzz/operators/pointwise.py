"""Elementwise operators: on floats and integers, comparisons and casts."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pytest_regional.fuzz.model.arguments import (
    DIGITS,
    LIMITS,
    ValueRange,
    between,
    constant,
    difference,
    integers,
    product,
    total,
    unit_of,
)
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Picks,
    ProgramValue,
    Wanted,
    agreed,
    also,
    anything,
    at_least,
    bits,
    boolean,
    broadcasts,
    exact,
    floating,
    integer,
    no_larger_than,
    numeric,
    real,
    same_dtype,
    signed,
    unkinked,
    unkinked_at,
)


def _whole(value_range: ValueRange) -> ValueRange:
    return integers(value_range.low, value_range.high)


def _integer_binary(
    name: str, call: str, value_range: Callable[[ValueRange, ValueRange], ValueRange], *conditions: Any
) -> Operator:
    return Operator(
        name,
        "integer",
        call,
        (also(integer, *conditions), also(integer, same_dtype, broadcasts, *conditions)),
        lambda a, b: _whole(value_range(a.value_range, b.value_range)),
    )


def _integer_unary(name: str, call: str, value_range: Callable[[ValueRange], ValueRange], *conditions: Any) -> Operator:
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
    _integer_binary("add_int", "{a} + {b}", total),
    _integer_binary("sub_int", "{a} - {b}", difference),
    _integer_binary("mul_int", "{a} * {b}", product),
    _integer_binary("bitwise_and", "{a} & {b}", _all_bits, at_least(0)),
    _integer_binary("bitwise_xor", "{a} ^ {b}", _all_bits, at_least(0)),
    _integer_binary("maximum_int", "torch.maximum({a}, {b})", lambda a, b: a.join(b)),
    _integer_unary("neg_int", "-{a}", lambda a: integers(-a.high, -a.low)),
    _integer_unary("abs_int", "torch.abs({a})", lambda a: integers(0, a.size)),
    _integer_unary("shift_left", "{a} << 1", lambda a: integers(2 * a.low, 2 * a.high), at_least(0)),
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

_INTEGER_ROWS = (*_INTEGERS, *_CASTS)


#: Smooth, and under autocast in the operands' own dtype on every device.
_PLAIN = (
    "add",
    "mul",
    "sub",
    "sin",
    "cos",
    "neg",
    "abs",
    "relu",
    "tanh",
    "sigmoid",
    "mul_number",
    "add_number",
    "silu",
)


def _operator(name: str, template: str, operands: tuple[Wanted, ...], value_range: Any, **fields: Any) -> Operator:
    fields = {"elementwise": True, "autocast": name in _PLAIN, **fields}
    return Operator(name, "pointwise", template, operands, value_range, **fields)


def _unary(name: str, value_range: Callable[[ValueRange], ValueRange], *conditions: Wanted, call: str = "") -> Operator:
    template = call or f"torch.{name}({{a}})"
    return _operator(name, template, (also(*(conditions or (floating,))),), lambda a: value_range(a.value_range))


def _functional(
    name: str, value_range: Callable[[ValueRange], ValueRange], *conditions: Wanted, arguments: str = ""
) -> Operator:
    call = f"torch.nn.functional.{name}({{a}}{arguments})"
    return _unary(name, value_range, floating, *conditions, call=call)


def _monotone(name: str, function: Callable[[float], float], *conditions: Wanted) -> Operator:
    return _unary(name, lambda a: a.within(function), floating, *conditions)


def _bounded(name: str, low: float, high: float, *conditions: Wanted) -> Operator:
    return _unary(name, lambda a: between(low, high, a), floating, *conditions)


def _binary(
    name: str,
    value_range: Callable[[ValueRange, ValueRange], ValueRange],
    *conditions: Wanted,
    call: str = "",
    first: Wanted = floating,
) -> Operator:
    template = call or f"torch.{name}({{a}}, {{b}})"
    second = also(first, same_dtype, broadcasts, *conditions)
    return _operator(name, template, (first, second), lambda a, b: value_range(a.value_range, b.value_range))


def _constant(values: Sequence[ProgramValue], picks: Picks) -> dict[str, Any]:
    return {"value": picks.one_of((2.0, 0.5, -1.0, 3, 1.0, 0.0))}


def _with_number(
    name: str, call: str, value_range: Callable[[ValueRange, float], ValueRange], *conditions: Wanted
) -> Operator:
    return _operator(
        name,
        call,
        (also(*(conditions or (floating,))),),
        lambda a, value: value_range(a.value_range, value),
        choose=_constant,
    )


def _kept(low: float, high: float, a: ValueRange) -> ValueRange:
    """Return the range of elements moved to a range where they are outside of it."""
    ends = min(max(a.low, low), high), min(max(a.high, low), high)
    unit = None if a.unit is None else min(a.unit, unit_of(low), unit_of(high))
    return replace(a.kept(*ends), unit=unit)


def _quotient(a: ValueRange, b: ValueRange) -> ValueRange:
    return product(a, b.within(lambda x: 1 / x))


def _power(a: ValueRange, b: ValueRange) -> ValueRange:
    ends = [x**y for x in (a.low, a.high) for y in (b.low, b.high)]
    return between(min(1.0, *ends), max(1.0, *ends), a, b)


def _rounded(a: ValueRange) -> ValueRange:
    return replace(integers(math.floor(a.low), math.ceil(a.high)), zeros=a.zeros)


def _either(a: ValueRange, b: ValueRange) -> ValueRange:
    # Which of 0.0 and -0.0 is the larger one is nowhere said.
    return replace(a.join(b), zeros=False)


def _divided(a: ValueRange, b: ValueRange) -> ValueRange:
    """Return the range of what is left of a division, which is exact for exact operands."""
    return a.kept(-a.size, a.size)


def _choose_bounds(values: Sequence[ProgramValue], picks: Picks) -> dict[str, Any]:
    low = picks.one_of((-1.0, 0.0, -0.5))
    return {"low": low, "high": picks.one_of((1.0, 0.75, 1.5))}


def _alpha(values: Sequence[ProgramValue], picks: Picks) -> dict[str, Any]:
    return {"alpha": picks.one_of((2, -1, 0.5))}


_SMOOTH = (
    _bounded("sin", -1, 1, no_larger_than(32)),
    _bounded("cos", -1, 1, no_larger_than(32)),
    _monotone("tanh", math.tanh),
    _bounded("sigmoid", 0, 1),
    _unary("square", lambda a: product(a, a).kept(0, a.size**2), numeric),
    _monotone("exp", math.exp, no_larger_than(4)),
    _monotone("expm1", math.expm1, no_larger_than(4)),
    _monotone("log", math.log, at_least(0.1)),
    _monotone("log1p", math.log1p, at_least(-0.5)),
    _monotone("log2", math.log2, at_least(0.1)),
    _monotone("sqrt", math.sqrt, at_least(0.1)),
    _monotone("rsqrt", lambda x: 1 / math.sqrt(x), at_least(0.1)),
    _monotone("reciprocal", lambda x: 1 / x, at_least(0.1)),
    _monotone("erf", math.erf),
    _monotone("atan", math.atan),
    _monotone("sinh", math.sinh, no_larger_than(4)),
    _unary("cosh", lambda a: between(1, math.cosh(a.size), a), floating, no_larger_than(4)),
    _monotone("asinh", math.asinh),
    _monotone("asin", math.asin, no_larger_than(0.9)),
    _monotone("atanh", math.atanh, no_larger_than(0.9)),
    _monotone("tan", math.tan, no_larger_than(1.2)),
    _monotone("exp2", lambda x: 2**x, no_larger_than(6)),
    _functional("silu", lambda a: between(-0.3, max(a.high, 0.0), a)),
    _functional("gelu", lambda a: between(-0.2, max(a.high, 0.0), a)),
    Operator(
        "gelu_tanh",
        "pointwise",
        'torch.nn.functional.gelu({a}, approximate="tanh")',
        (floating,),
        lambda a: between(-0.2, max(a.value_range.high, 0.0), a.value_range),
        elementwise=True,
    ),
    _functional("mish", lambda a: between(-0.4, max(a.high, 0.0), a)),
    _functional("softplus", lambda a: between(0, max(a.high, 0.0) + 0.7, a), no_larger_than(16)),
    _functional("logsigmoid", lambda a: between(min(a.low, 0.0) - 0.7, 0.0, a)),
    _functional("elu", lambda a: between(-1.0, max(a.high, 0.0), a), unkinked_at(0.0)),
)

_KINKED = (
    _unary("relu", lambda a: _kept(0.0, math.inf, a), real, unkinked_at(0.0)),
    _unary("abs", lambda a: a.kept(0.0, a.size), real, unkinked_at(0.0)),
    _functional(
        "leaky_relu", lambda a: between(min(a.low, 0.0), max(a.high, 0.0), a), unkinked_at(0.0), arguments=", 0.1"
    ),
    _functional("hardtanh", lambda a: _kept(-1.0, 1.0, a), numeric, unkinked_at(-1.0, 1.0)),
    _functional("relu6", lambda a: _kept(0.0, 6.0, a), numeric, unkinked_at(0.0, 6.0)),
    _functional("hardsigmoid", lambda a: between(0.0, 1.0, a), unkinked_at(-3.0, 3.0)),
    _functional("hardswish", lambda a: between(-0.4, max(a.high, 0.0), a), unkinked_at(-3.0, 3.0)),
    _operator(
        "clamp",
        "torch.clamp({a}, {low}, {high})",
        (also(numeric, unkinked_at(-1.0, -0.5, 0.0, 0.75, 1.0, 1.5)),),
        lambda a, low, high: _kept(low, high, a.value_range),
        choose=_choose_bounds,
    ),
)

_JUMPING = (
    _unary("floor", _rounded, exact, numeric),
    _unary("ceil", _rounded, exact, numeric),
    _unary("round", _rounded, exact, numeric),
    _unary("trunc", _rounded, exact, numeric),
    _unary("frac", lambda a: a.kept(-1, 1), exact, numeric),
    _unary("sign", lambda a: integers(-1, 1), exact, numeric),
    _unary(
        "nan_to_num",
        lambda a: replace(a.kept(min(a.low, -1.5), max(a.high, 1.5)), finite=True, unit=None),
        agreed,
        real,
        call="torch.nan_to_num({a}, 0.0, 1.5, -1.5)",
    ),
)

_BINARY = (
    _binary("sub", difference, first=real),
    _binary("div", _quotient, at_least(0.1)),
    _binary("maximum", _either, unkinked, first=numeric),
    _binary("minimum", _either, unkinked, first=numeric),
    _operator(
        "pow",
        "torch.pow({a}, {b})",
        (also(floating, at_least(0.1)), also(floating, same_dtype, broadcasts, no_larger_than(2))),
        lambda a, b: _power(a.value_range, b.value_range),
    ),
    _operator(
        "atan2",
        "torch.atan2({a}, {b})",
        (also(floating, at_least(0.1)), also(floating, same_dtype, broadcasts, at_least(0.1))),
        lambda a, b: between(0, 1.6, a.value_range, b.value_range),
    ),
    _operator(
        "hypot",
        "torch.hypot({a}, {b})",
        (also(floating, at_least(0.1)), also(floating, same_dtype, broadcasts)),
        lambda a, b: between(0, a.value_range.size + b.value_range.size, a.value_range, b.value_range),
    ),
    _binary("copysign", lambda a, b: a.kept(-a.size, a.size), signed, first=numeric),
    _binary("logaddexp", lambda a, b: between(max(a.low, b.low), max(a.high, b.high) + 0.7, a, b)),
    _binary("fmod", _divided, exact, at_least(0.1), first=also(numeric, exact)),
    _binary(
        "swiglu", lambda a, b: product(between(-0.3, max(a.high, 0.0)), b), call="torch.nn.functional.silu({a}) * {b}"
    ),
    _operator(
        "add_alpha",
        "torch.add({a}, {b}, alpha={alpha})",
        (floating, also(floating, same_dtype, broadcasts)),
        lambda a, b, alpha: total(a.value_range, b.value_range.scaled(alpha)),
        choose=_alpha,
    ),
    Operator(
        "add_mixed",
        "pointwise",
        "{a} + {b}",
        (floating, also(floating, broadcasts)),
        lambda a, b: total(a.value_range, b.value_range),
        autocast=True,
    ),
    Operator(
        "mul_mixed",
        "pointwise",
        "{a} * {b}",
        (floating, also(floating, broadcasts)),
        lambda a, b: product(a.value_range, b.value_range),
        autocast=True,
    ),
    Operator(
        "mul_mask",
        "pointwise",
        "{a} * {b}",
        (real, also(boolean, broadcasts)),
        lambda a, b: product(a.value_range, b.value_range),
    ),
)

_NUMBERS = (
    _with_number("mul_number", "torch.mul({a}, {value})", lambda a, value: a.scaled(value), real),
    _with_number("add_number", "{a} + {value}", lambda a, value: total(a, constant(value)), real),
    _with_number("rsub_number", "{value} - {a}", lambda a, value: difference(constant(value), a), real),
    _with_number("div_number", "{a} / ({value} + 4)", lambda a, value: a.scaled(1 / (value + 4)), real),
    _unary("cube", lambda a: product(product(a, a), a), numeric, call="{a} ** 3"),
)


def _mixed(a: ProgramValue, b: ProgramValue, c: ProgramValue) -> ValueRange:
    return b.value_range.join(c.value_range)


_TERNARY = (
    Operator(
        "where",
        "pointwise",
        "torch.where({a}, {b}, {c})",
        (
            boolean,
            also(real, broadcasts),
            also(real, lambda value, a, b: value.dtype == b.dtype and value.shape == b.shape),
        ),
        _mixed,
    ),
    Operator(
        "masked_fill",
        "pointwise",
        "{a}.masked_fill({b}, {value})",
        (real, also(boolean, broadcasts)),
        lambda a, b, value: a.value_range.join(constant(value)),
        _constant,
    ),
    Operator(
        "masked_fill_inf",
        "pointwise",
        '{a}.masked_fill({b}, float("-inf"))',
        (floating, also(boolean, broadcasts)),
        lambda a, b: replace(a.value_range.repeated(), finite=False),
    ),
    Operator(
        "where_number",
        "pointwise",
        "torch.where({a}, {b}, {value})",
        (boolean, also(real, broadcasts)),
        lambda a, b, value: b.value_range.join(constant(value)),
        _constant,
    ),
    _operator(
        "lerp",
        "torch.lerp({a}, {b}, 0.25)",
        (floating, also(floating, same_dtype, broadcasts)),
        lambda a, b: between(
            min(a.value_range.low, b.value_range.low),
            max(a.value_range.high, b.value_range.high),
            a.value_range,
            b.value_range,
        ),
    ),
    _operator(
        "addcmul",
        "torch.addcmul({a}, {b}, {c})",
        (floating, also(floating, same_dtype, broadcasts), also(floating, same_dtype, broadcasts)),
        lambda a, b, c: total(a.value_range, product(b.value_range, c.value_range)),
    ),
    _operator(
        "addcdiv",
        "torch.addcdiv({a}, {b}, {c})",
        (floating, also(floating, same_dtype, broadcasts), also(floating, same_dtype, broadcasts, at_least(0.1))),
        lambda a, b, c: total(a.value_range, _quotient(b.value_range, c.value_range)),
    ),
)


def _comparison(name: str) -> Operator:
    return Operator(
        name,
        "comparison",
        f"torch.{name}({{a}}, {{b}})",
        (exact, also(exact, same_dtype, broadcasts)),
        lambda a, b: integers(0, 1),
    )


_COMPARISONS = (
    *map(_comparison, ("gt", "eq", "le", "ne")),
    Operator("gt_number", "comparison", "{a} > {value}", (exact,), lambda a, value: integers(0, 1), _constant),
    Operator("isnan", "comparison", "torch.isnan({a})", (also(real, agreed),), lambda a: integers(0, 1)),
    Operator("isfinite", "comparison", "torch.isfinite({a})", (also(real, agreed),), lambda a: integers(0, 1)),
    Operator("signbit", "comparison", "torch.signbit({a})", (also(numeric, signed),), lambda a: integers(0, 1)),
)

OPERATORS = (
    _binary("add", total, first=real),
    _binary("mul", product, first=real),
    _SMOOTH[0],
    _unary("neg", lambda a: replace(a, low=-a.high, high=-a.low), real),
    *_SMOOTH[1:],
    *_NUMBERS,
    *_BINARY,
    *_KINKED,
    *_TERNARY,
    *_JUMPING,
    *_COMPARISONS,
    *_INTEGER_ROWS,
)
