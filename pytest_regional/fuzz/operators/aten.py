"""ATen's own operators: what tensors they take and what holds of the results; all else comes from their schemas.

The other modules write operators as a user's program does, each with the few arguments that regional compilation is
about. Here it is the operators themselves that count: every overload with every argument.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pytest_regional.fuzz.model.value_range import (
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
    Parameters,
    ProgramValue,
    Wanted,
    agreed,
    also,
    anything,
    apart,
    at_least,
    bits,
    boolean,
    broadcasts,
    distinct,
    either,
    exact,
    floating,
    integer,
    matrix_of,
    no_larger_than,
    nonempty,
    numeric,
    ranked,
    real,
    same_dtype,
    same_shape,
    signed,
    unkinked,
    unkinked_at,
    without_gradient,
    writable,
)
from pytest_regional.fuzz.operators.schemas import Choices, derived

Ranges = Callable[..., Any]


# Operands


def _number(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want floats or integers, no truth values."""
    return numeric(value) or integer(value)


def _any_finite(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want numbers or truth values."""
    return not value.unbacked and value.value_range.finite


def _index(value: ProgramValue, *before: ProgramValue) -> bool:
    return value.dtype == "int64" and value.value_range.low >= 0 and not value.unbacked


def _ordinary(value: ProgramValue, *before: ProgramValue) -> bool:
    return value.value_range.ordinary


def _positive_divisor(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want what nothing divided by it overflows: least integers over -1 trap."""
    return value.value_range.low >= (0.1 if value.is_float else 1)


_OTHER = also(_number, broadcasts)
_LIKE = also(numeric, same_dtype, broadcasts)
_ROWS = also(ranked(1), nonempty)


# Ranges


def _on_ranges(rule: Callable[..., Any]) -> Ranges:
    """Return a rule on values out of one on their ranges; parameters are of no account."""
    return lambda *values, **parameters: rule(*(value.value_range for value in values))


def _mixed(*values: ProgramValue) -> tuple[ValueRange, ...]:
    """Return ranges of operands as they enter an operator that casts them to a common dtype."""
    ranges = tuple(value.value_range for value in values)
    if len({value.dtype for value in values}) == 1:
        return ranges
    # The common dtype may hold fewer integers than the operand's own.
    return tuple(one if one.unit is None or one.size <= 256 * one.unit else replace(one, unit=None) for one in ranges)


def _added(a: ProgramValue, b: ProgramValue, alpha: float = 1, **parameters: Any) -> ValueRange:
    first, second = _mixed(a, b)
    return total(first, second.scaled(alpha))


def _subtracted(a: ProgramValue, b: ProgramValue, alpha: float = 1, **parameters: Any) -> ValueRange:
    first, second = _mixed(a, b)
    return difference(first, second.scaled(alpha))


def _reversed(a: ProgramValue, b: ProgramValue, alpha: float = 1, **parameters: Any) -> ValueRange:
    return _subtracted(b, a, alpha)


def _multiplied(a: ProgramValue, b: ProgramValue, **parameters: Any) -> ValueRange:
    return product(*_mixed(a, b))


def _scalar(a: ProgramValue, number: float) -> ValueRange:
    """Return the range of a Python number beside ``a``, which may make a float of integers."""
    return constant(number)


def _quotients(a: ValueRange, low: float, high: float) -> list[float]:
    return [end / divisor for end in (a.low, a.high) for divisor in (low, high)]


def _divided(a: ProgramValue, low: float, high: float) -> ValueRange:
    ends = _quotients(a.value_range, low, high)
    return integers(math.floor(min(ends)), math.ceil(max(ends)))


def _rest(a: ProgramValue, size: float, unit: float | None) -> ValueRange:
    """Return the range of remainders of a division by what is no larger than ``size``."""
    both = ValueRange(-size, size, exact=True, unit=unit, zeros=False)
    return replace(both, unit=both.join(a.value_range).unit)


def _join(*values: ProgramValue, **parameters: Any) -> ValueRange:
    return functools.reduce(ValueRange.join, (value.value_range for value in values))


def _join_unsigned(*values: ProgramValue, **parameters: Any) -> ValueRange:
    """Return the range of a choice that does not say which of 0.0 and -0.0 is taken."""
    return replace(_join(*values), zeros=False)


def _clamped(a: ProgramValue, min: float | None = None, max: float | None = None, **parameters: Any) -> ValueRange:
    held = a.value_range
    if min is not None:
        held = _raised(held, min)
    if max is not None:
        held = _lowered(held, max)
    return replace(held, zeros=False)


def _raised(a: ValueRange, least: float) -> ValueRange:
    return _with_unit(a.kept(max(a.low, least), max(a.high, least)), a, least)


def _lowered(a: ValueRange, most: float) -> ValueRange:
    return _with_unit(a.kept(min(a.low, most), min(a.high, most)), a, most)


def _with_unit(made: ValueRange, a: ValueRange, number: float) -> ValueRange:
    return replace(made, unit=None if a.unit is None else min(a.unit, unit_of(number)))


def _truth(*values: ProgramValue, **parameters: Any) -> ValueRange:
    return integers(0, 1)


def _all_bits(*values: ProgramValue, **parameters: Any) -> ValueRange:
    """Return the range of any bits of the operands' dtype."""
    if all(value.is_bool for value in values):
        return integers(0, 1)
    low, high = LIMITS[values[0].dtype]
    ranges = [value.value_range for value in values]
    if all(one.low >= 0 for one in ranges):
        return integers(0, 2 ** int(max(one.high for one in ranges)).bit_length() - 1)
    return integers(low, high)


def _bounded(low: float, high: float) -> Ranges:
    return lambda *values, **parameters: between(low, high, *(value.value_range for value in values))


def _monotone(function: Callable[[float], float]) -> Ranges:
    return lambda a, **parameters: a.value_range.within(function)


def _moved(a: ProgramValue, *others: ProgramValue, **parameters: Any) -> ValueRange:
    return a.value_range.moved()


def _repeated(a: ProgramValue, *others: ProgramValue, **parameters: Any) -> ValueRange:
    return a.value_range.repeated()


def _dims_of(a: ProgramValue, dim: Any) -> int:
    """Return how many elements lie along ``dim``: one dimension, several, or all."""
    if dim is None or dim == ():
        return max(a.count, 1)
    dims = dim if isinstance(dim, tuple) else (dim,)
    return math.prod(a.shape[one] for one in dims) if a.shape else 1


def _summed(a: ProgramValue, dim: Any = None, dtype: str | None = None, **parameters: Any) -> ValueRange:
    held = a.value_range
    if dtype is not None and held.unit is not None and held.size > held.unit * 2**24:
        held = replace(held, unit=None)
    return held.summed(_dims_of(a, dim))


def _averaged(a: ProgramValue, dim: Any = None, **parameters: Any) -> ValueRange:
    count = max(_dims_of(a, dim), 1)
    summed = _summed(a, dim)
    unit = None if summed.unit is None or count & (count - 1) else summed.unit / count
    return replace(summed, low=min(a.value_range.low, 0), high=max(a.value_range.high, 0), unit=unit)


def _spread(a: ProgramValue, **parameters: Any) -> ValueRange:
    reach = a.value_range.high - a.value_range.low
    return between(0.0, 2 * reach, a.value_range)


def _variance(a: ProgramValue, **parameters: Any) -> ValueRange:
    return between(0.0, 2 * (a.value_range.high - a.value_range.low) ** 2, a.value_range)


def _normed(a: ProgramValue, **parameters: Any) -> ValueRange:
    return between(0.0, a.value_range.size * max(a.count, 1), a.value_range)


def _places(a: ProgramValue, dim: Any = None, **parameters: Any) -> ValueRange:
    count = a.count if dim is None else a.shape[dim] if a.shape else 1
    return integers(0, max(count - 1, 0))


def _sorted(a: ProgramValue, dim: Any = -1, **parameters: Any) -> tuple[ValueRange, ValueRange]:
    return replace(a.value_range, zeros=a.value_range.zeros), _places(a, dim)


def _chosen(a: ProgramValue, dim: Any = -1, **parameters: Any) -> tuple[ValueRange, ValueRange]:
    return replace(a.value_range.repeated(), zeros=False), _places(a, dim)


def _extreme(a: ProgramValue, *others: ProgramValue, **parameters: Any) -> ValueRange:
    return replace(a.value_range.repeated(), zeros=False)


def _multiplied_up(a: ProgramValue, dim: Any = None, **parameters: Any) -> ValueRange:
    count = _dims_of(a, dim)
    size = max(a.value_range.size, 1.0) ** count
    unit = None if a.value_range.unit is None else min(a.value_range.unit, 1.0) ** count
    return replace(between(-size if a.value_range.low < 0 else 0.0, size, a.value_range), unit=unit, zeros=False)


# Elementwise


def _arithmetic() -> Iterator[tuple[Operator, ...]]:
    both = {"self": _number, "other": _OTHER}
    of_any = {"self": _any_finite, "other": also(_any_finite, broadcasts)}
    yield derived("add.Tensor", "pointwise", of_any, _added, in_place=True)
    yield derived("sub.Tensor", "pointwise", both, _subtracted, in_place=True)
    yield derived("rsub.Tensor", "pointwise", both, _reversed)
    yield derived("mul.Tensor", "pointwise", of_any, _multiplied, in_place=True)
    one = {"self": _number}
    yield derived(
        "add.Scalar",
        "pointwise",
        one,
        lambda a, number, alpha: total(a.value_range, constant(number).scaled(alpha)),
        in_place=True,
    )
    yield derived(
        "sub.Scalar",
        "pointwise",
        one,
        lambda a, number, alpha: difference(a.value_range, constant(number).scaled(alpha)),
    )
    yield derived(
        "rsub.Scalar",
        "pointwise",
        one,
        lambda a, number, alpha: difference(constant(number), a.value_range.scaled(alpha)),
    )
    yield derived("mul.Scalar", "pointwise", one, lambda a, number: a.value_range.scaled(number), in_place=True)
    yield derived(
        "neg",
        "pointwise",
        one,
        lambda a: replace(a.value_range, low=-a.value_range.high, high=-a.value_range.low),
        in_place=True,
    )
    yield derived(
        "abs",
        "pointwise",
        {"self": also(_number, unkinked_at(0.0))},
        lambda a: a.value_range.kept(0, a.value_range.size),
        in_place=True,
    )
    for name in ("maximum", "minimum", "fmax", "fmin"):
        yield derived(name, "pointwise", {"self": _number, "other": also(_OTHER, unkinked)}, _chosen_of_two)
    kinks = also(_number, unkinked_at(-2, -1.0, 0, 0.5, 0.75, 1.0, 1.5, 2, 3))
    bounds = {"min": _always(-1.0, 0, -2, None), "max": _always(1.0, 2, 0.75, None)}
    yield derived("clamp", "pointwise", {"self": kinks}, _clamped, given=bounds, in_place=True)
    yield derived(
        "clamp_min", "pointwise", {"self": kinks}, _clamped, given={"min": _always(0, -1, 0.5)}, in_place=True
    )
    yield derived("clamp_max", "pointwise", {"self": kinks}, _clamped, given={"max": _always(1, 0, 0.5)})
    same = also(_OTHER, unkinked)
    yield derived("clamp.Tensor", "pointwise", {"self": _number, "min": same, "max": same}, _join_unsigned)
    yield derived(
        "square",
        "pointwise",
        {"self": _number},
        lambda a: product(a.value_range, a.value_range).kept(0, a.value_range.size**2),
    )
    yield derived("sgn", "pointwise", {"self": also(_number, exact)}, lambda a: integers(-1, 1))
    yield derived(
        "relu",
        "pointwise",
        {"self": also(_number, unkinked_at(0.0))},
        lambda a: _raised(a.value_range, 0),
        in_place=True,
    )
    yield from _division()
    yield from _powers()
    yield from _ternary()


def _always(*choices: Any) -> Choices:
    return lambda values, chosen: choices


def _chosen_of_two(a: ProgramValue, b: ProgramValue) -> ValueRange:
    first, second = _mixed(a, b)
    held = first.join(second)
    return replace(held, zeros=False, exact=held.exact and (a.dtype == b.dtype or held.unit is not None))


def _division() -> Iterator[tuple[Operator, ...]]:
    exactly = also(_number, exact)
    divisor = also(_number, exact, broadcasts, _positive_divisor)
    both = {"self": exactly, "other": divisor}

    def floored(a: ProgramValue, b: ProgramValue, **parameters: Any) -> ValueRange:
        return _divided(a, b.value_range.low, b.value_range.high)

    def left(a: ProgramValue, b: ProgramValue) -> ValueRange:
        return _rest(a, b.value_range.size, b.value_range.unit)

    divisors = _divisors
    yield derived("div.Tensor_mode", "pointwise", both, floored, in_place=True)
    yield derived("floor_divide", "pointwise", both, floored)
    yield derived("remainder.Tensor", "pointwise", both, left, in_place=True)
    yield derived("fmod.Tensor", "pointwise", both, left)

    def floored_by(a: ProgramValue, number: float, **parameters: Any) -> ValueRange:
        return _divided(a, number, number)

    def left_by(a: ProgramValue, number: float) -> ValueRange:
        return _rest(a, abs(number), unit_of(number))

    one = {"self": exactly}
    given = {"other": divisors}
    yield derived("div.Scalar_mode", "pointwise", one, floored_by, given=given, in_place=True)
    yield derived("floor_divide.Scalar", "pointwise", one, floored_by, given=given)
    yield derived("remainder.Scalar", "pointwise", one, left_by, given=given, in_place=True)
    yield derived("fmod.Scalar", "pointwise", one, left_by, given=given)
    yield derived(
        "div.Tensor",
        "pointwise",
        {"self": _any_finite, "other": also(_any_finite, broadcasts, _positive_divisor)},
        lambda a, b: product(a.value_range, ValueRange(1 / b.value_range.high, 1 / b.value_range.low)),
    )
    yield derived(
        "div.Scalar",
        "pointwise",
        {"self": _any_finite},
        lambda a, number: a.value_range.scaled(1 / number),
        given={"other": _always(2, 4, -2, 3, 0.5)},
    )


def _divisors(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[float]:
    """Return numbers to divide by: -1 is none of them for integers, whose least one over it traps."""
    return (2, 3, -2, 0.1, 0.3, 7) if values[0].is_float else (2, 3, -2, 7, -3)


def _powers() -> Iterator[tuple[Operator, ...]]:
    def power(a: ProgramValue, exponent: float) -> ValueRange:
        held = a.value_range
        if exponent in (2, 3):
            squared = product(held, held)
            return squared.kept(0, held.size**2) if exponent == 2 else product(squared, held)
        if exponent in (0, 1):
            return constant(1) if exponent == 0 else held
        ends = [max(end, 0.1) ** exponent for end in (held.low, held.high)]
        return between(min(ends), max(ends), held)

    yield derived(
        "pow.Tensor_Scalar",
        "pointwise",
        {"self": _number},
        lambda a, exponent: power(a, exponent),
        given={"exponent": _exponents},
    )
    yield derived(
        "pow.Scalar",
        "pointwise",
        {"exponent": also(integer, at_least(0), no_larger_than(8))},
        lambda a, number: integers(-(3**8), 3**8),
        given={"self": _always(2, -2, -1, 3)},
    )
    yield derived(
        "pow.Tensor_Tensor",
        "pointwise",
        {
            "self": also(integer, no_larger_than(4)),
            "exponent": also(integer, broadcasts, at_least(0), no_larger_than(8)),
        },
        lambda a, b: integers(-(4**8), 4**8),
    )


def _exponents(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[float]:
    a = values[0]
    return (
        (2, 3, 1, 0, 0.5, -1, 1.5)
        if a.is_float and a.value_range.low >= 0.1 and a.value_range.ordinary
        else (2, 3, 1, 0)
    )


def _ternary() -> Iterator[tuple[Operator, ...]]:
    def scaled_product(a: ProgramValue, b: ProgramValue, c: ProgramValue, value: float = 1) -> ValueRange:
        return total(a.value_range, product(b.value_range, c.value_range).scaled(value))

    def scaled_quotient(a: ProgramValue, b: ProgramValue, c: ProgramValue, value: float = 1) -> ValueRange:
        inverse = ValueRange(1 / c.value_range.high, 1 / c.value_range.low)
        return total(a.value_range, product(b.value_range, inverse).scaled(value))

    yield derived(
        "addcmul",
        "pointwise",
        {
            "self": _number,
            "tensor1": also(_number, same_dtype, broadcasts),
            "tensor2": also(_number, same_dtype, broadcasts),
        },
        scaled_product,
        in_place=True,
    )
    yield derived(
        "addcdiv",
        "pointwise",
        {
            "self": floating,
            "tensor1": also(floating, same_dtype, broadcasts),
            "tensor2": also(floating, same_dtype, broadcasts, at_least(0.1)),
        },
        scaled_quotient,
        in_place=True,
    )

    def lerped(a: ProgramValue, b: ProgramValue, *others: ProgramValue, **parameters: Any) -> ValueRange:
        return between(
            min(a.value_range.low, b.value_range.low),
            max(a.value_range.high, b.value_range.high),
            a.value_range,
            b.value_range,
        )

    yield derived(
        "lerp.Scalar",
        "pointwise",
        {"self": floating, "end": also(floating, same_dtype, broadcasts)},
        lerped,
        in_place=True,
    )
    unit = lambda value, *before: value.value_range.low >= 0 and value.value_range.high <= 1  # noqa: E731
    yield derived(
        "lerp.Tensor",
        "pointwise",
        {
            "self": floating,
            "end": also(floating, same_dtype, broadcasts),
            "weight": also(floating, same_dtype, broadcasts, unit),
        },
        lerped,
    )
    yield derived(
        "where.self",
        "pointwise",
        {"condition": boolean, "self": also(_any_finite, broadcasts), "other": also(_any_finite, broadcasts)},
        lambda a, b, c: _chosen_of_two(b, c) if b.dtype != c.dtype else b.value_range.join(c.value_range),
    )
    yield derived(
        "where.ScalarOther",
        "pointwise",
        {"condition": boolean, "self": also(_any_finite, broadcasts)},
        lambda a, b, number: b.value_range.join(constant(number)),
    )
    yield derived(
        "masked_fill.Scalar",
        "pointwise",
        {"self": _any_finite, "mask": also(boolean, broadcasts)},
        lambda a, b, value: a.value_range.join(constant(value)),
        in_place=True,
    )
    yield derived(
        "masked_fill.Tensor",
        "pointwise",
        {
            "self": _number,
            "mask": also(boolean, broadcasts),
            "value": lambda v, a, *o: v.shape == () and v.dtype == a.dtype and _number(v),
        },
        lambda a, b, c: a.value_range.join(c.value_range),
    )
    yield derived(
        "threshold",
        "pointwise",
        {"self": also(_number, exact)},
        lambda a, threshold, value: replace(a.value_range.join(constant(value)), zeros=False),
        given={"threshold": _always(0, 0.5, 1)},
    )
    yield derived(
        "nan_to_num",
        "pointwise",
        {"self": also(real, agreed)},
        _without_nan,
        given={"posinf": _always(1.5, 0.5), "neginf": _always(-1.5, 0.0)},
    )


def _without_nan(a: ProgramValue, nan: float | None, posinf: float, neginf: float) -> ValueRange:
    return ValueRange(min(a.value_range.low, neginf), max(a.value_range.high, posinf, nan or 0), a.value_range.exact)


def _bitwise() -> Iterator[tuple[Operator, ...]]:
    whole = either(integer, boolean)
    both = {"self": whole, "other": also(whole, same_dtype, broadcasts)}
    for name in ("and", "or", "xor"):
        yield derived(f"bitwise_{name}.Tensor", "integer", both, _all_bits, in_place=True)
        yield derived(
            f"bitwise_{name}.Scalar",
            "integer",
            {"self": integer},
            lambda a, number: integers(*LIMITS[a.dtype]),
            given={"other": _always(1, 3, 6, -1)},
        )
        yield derived(
            f"logical_{name}",
            "integer",
            {"self": also(anything, exact), "other": also(anything, exact, broadcasts)},
            _truth,
        )
    yield derived("bitwise_not", "integer", {"self": whole}, _all_limits, in_place=True)
    yield derived("logical_not", "integer", {"self": also(anything, exact)}, _truth)
    shift = also(integer, same_dtype, broadcasts, at_least(0), no_larger_than(6))
    yield derived(
        "bitwise_left_shift.Tensor",
        "integer",
        {"self": integer, "other": shift},
        lambda a, b: integers(a.value_range.low * 64, a.value_range.high * 64),
        in_place=True,
    )
    yield derived(
        "bitwise_right_shift.Tensor",
        "integer",
        {"self": integer, "other": shift},
        lambda a, b: a.value_range.repeated(),
    )
    yield derived(
        "bitwise_left_shift.Tensor_Scalar",
        "integer",
        {"self": integer},
        lambda a, number: integers(a.value_range.low * 2**number, a.value_range.high * 2**number),
        given={"other": _always(1, 2, 5)},
    )
    yield derived(
        "bitwise_right_shift.Tensor_Scalar",
        "integer",
        {"self": integer},
        lambda a, number: a.value_range.repeated(),
        given={"other": _always(1, 2, 5)},
    )
    small = also(integer, no_larger_than(1000))
    yield derived(
        "gcd",
        "integer",
        {"self": small, "other": also(small, same_dtype, broadcasts)},
        lambda a, b: integers(0, max(a.value_range.size, b.value_range.size)),
    )
    yield derived(
        "lcm",
        "integer",
        {"self": small, "other": also(small, same_dtype, broadcasts)},
        lambda a, b: integers(-a.value_range.size * b.value_range.size, a.value_range.size * b.value_range.size),
    )


def _all_limits(a: ProgramValue) -> ValueRange:
    return integers(0, 1) if a.is_bool else integers(*LIMITS[a.dtype])


def _comparisons() -> Iterator[tuple[Operator, ...]]:
    exactly = also(_any_finite, exact)
    # An integer and a float are compared in the float's dtype, which may not hold the integer.
    held = also(
        exactly, broadcasts, lambda b, a: a.dtype == b.dtype or max(a.value_range.size, b.value_range.size) <= 256
    )
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        yield derived(f"{name}.Tensor", "comparison", {"self": exactly, "other": held}, _truth)
        yield derived(f"{name}.Scalar", "comparison", {"self": exactly}, _truth)
    for name in ("isnan", "isinf", "isposinf", "isneginf", "isfinite"):
        yield derived(name, "comparison", {"self": also(anything, agreed)}, _truth)
    yield derived(
        "isin.Tensor_Tensor",
        "comparison",
        {"elements": exactly, "test_elements": also(exactly, same_dtype)},
        _truth,
        given={"assume_unique": _always(False), "invert": _always(False, True)},
    )
    yield derived("signbit", "comparison", {"self": also(_number, signed)}, _truth)


def _smooth() -> Iterator[tuple[Operator, ...]]:
    def unary(name: str, value_range: Ranges, *conditions: Wanted, **fields: Any) -> tuple[Operator, ...]:
        return derived(name, "pointwise", {"self": also(floating, *conditions)}, value_range, **fields)

    inside = no_larger_than(0.9)
    yield unary("acos", _bounded(0, 3.2), inside)
    yield unary("acosh", _bounded(0, 8), at_least(1.2))
    yield unary("log10", _monotone(math.log10), at_least(0.1))
    yield unary("erfc", _bounded(0, 2))
    yield unary("erfinv", _bounded(-2, 2), inside)
    yield unary("digamma", _bounded(-12, 8), at_least(0.2))
    yield unary("lgamma", _bounded(-1, 210), at_least(0.2), no_larger_than(64))
    yield unary("sinc", _bounded(-1, 1), no_larger_than(16))
    yield unary("i0", _bounded(0, 60), no_larger_than(4))
    yield unary("special_i0e", _bounded(0, 1), no_larger_than(4))
    yield unary("special_i1", _bounded(-12, 12), no_larger_than(4))
    yield unary("special_i1e", _bounded(-1, 1), no_larger_than(4))
    yield unary("special_ndtr", _bounded(0, 1), no_larger_than(4))
    yield unary("special_ndtri", _bounded(-2, 2), at_least(0.1), inside)
    yield unary("special_log_ndtr", _bounded(-16, 0), no_larger_than(4))
    yield unary("special_entr", _bounded(-16, 0.4), at_least(0.1), no_larger_than(4))
    yield unary("special_erfcx", _bounded(0, 8), at_least(-1), no_larger_than(4))
    yield unary("special_bessel_j0", _bounded(-1, 1), no_larger_than(8))
    yield unary("special_bessel_j1", _bounded(-1, 1), no_larger_than(8))
    yield unary("polygamma", _bounded(-60, 60), at_least(0.5), given={"n": _always(1, 0, 2)})
    yield unary("deg2rad", _bounded(-16, 16))
    yield unary("rad2deg", _bounded(-460, 460), no_larger_than(8))
    yield unary("logit", _bounded(-3, 3), at_least(0.1), inside, given={"eps": _always(None, 0.05)})
    yield unary("gelu", lambda a, **p: between(-0.2, max(a.value_range.high, 0.0), a.value_range), in_place=True)
    yield unary(
        "softplus",
        lambda a, **p: between(0, max(a.value_range.high, 0.0) + 1, a.value_range),
        no_larger_than(8),
        given={"beta": _always(1, 2), "threshold": _always(20)},
    )
    yield unary(
        "elu",
        lambda a, **p: between(-2.0, 2 * max(a.value_range.high, 0.0), a.value_range),
        unkinked_at(0.0),
        given={"alpha": _always(1, 0.5, 2), "scale": _always(1, 2), "input_scale": _always(1, 0.5)},
        in_place=True,
    )
    yield unary(
        "celu",
        lambda a, **p: between(-2.0, max(a.value_range.high, 0.0), a.value_range),
        unkinked_at(0.0),
        given={"alpha": _always(1.0, 0.5, 2.0)},
    )
    yield unary("selu", lambda a, **p: between(-2.0, 2 * max(a.value_range.high, 0.0), a.value_range), unkinked_at(0.0))
    yield unary("hardshrink", lambda a, **p: replace(a.value_range.join(constant(0)), zeros=False), exact)
    yield unary(
        "softshrink",
        lambda a, **p: between(min(a.value_range.low, 0), max(a.value_range.high, 0), a.value_range),
        unkinked_at(-0.5, -0.25, 0.25, 0.5),
    )
    yield unary(
        "leaky_relu",
        lambda a, **p: between(min(a.value_range.low, 0.0), max(a.value_range.high, 0.0), a.value_range),
        unkinked_at(0.0),
        in_place=True,
    )
    yield unary(
        "hardtanh", lambda a, min_val, max_val: _clamped(a, min_val, max_val), unkinked_at(-1, 0, 1, 2), in_place=True
    )
    yield unary(
        "hardswish",
        lambda a: between(-0.4, max(a.value_range.high, 0.0), a.value_range),
        unkinked_at(-3, 3),
        in_place=True,
    )
    yield unary("hardsigmoid", lambda a: between(0, 1, a.value_range), unkinked_at(-3, 3), in_place=True)
    yield unary(
        "glu",
        lambda a, dim: between(-a.value_range.size, a.value_range.size, a.value_range),
        ranked(1),
        lambda v, *b: v.shape[-1] % 2 == 0,
        nonempty,
        given={"dim": _always(-1)},
    )
    yield unary("sigmoid", _bounded(0, 1), in_place=True)
    yield unary("tanh", _monotone(math.tanh), in_place=True)
    yield unary("exp", _monotone(math.exp), no_larger_than(4), in_place=True)
    yield unary("sqrt", _monotone(math.sqrt), at_least(0.1), in_place=True)
    yield unary("reciprocal", _monotone(lambda x: 1 / x), at_least(0.1), in_place=True)
    exactly = also(numeric, exact)
    whole = {"self": exactly}
    yield derived("round.decimals", "pointwise", {"self": also(numeric, exact, _has_unit)}, _rounded_decimals)
    yield derived(
        "frexp.Tensor",
        "pointwise",
        whole,
        lambda a: (ValueRange(-1, 1, exact=True, zeros=a.value_range.zeros), integers(-1100, 1100)),
    )
    yield derived(
        "trunc",
        "pointwise",
        whole,
        lambda a: replace(integers(math.floor(a.value_range.low), math.ceil(a.value_range.high)), zeros=False),
        in_place=True,
    )
    yield derived(
        "ldexp.Tensor",
        "pointwise",
        {"self": numeric, "other": also(integer, broadcasts, no_larger_than(6))},
        lambda a, b: replace(a.value_range.scaled(64).join(a.value_range.scaled(1 / 64)), exact=False, zeros=False),
    )
    yield derived(
        "nextafter",
        "pointwise",
        {"self": also(numeric, signed), "other": also(numeric, signed, same_dtype, broadcasts)},
        lambda a, b: replace(a.value_range.join(b.value_range), unit=None),
    )
    yield derived(
        "copysign.Tensor",
        "pointwise",
        {"self": exactly, "other": also(_number, signed, broadcasts)},
        lambda a, b: replace(a.value_range.kept(-a.value_range.size, a.value_range.size), zeros=True),
    )
    yield derived(
        "copysign.Scalar",
        "pointwise",
        whole,
        lambda a, number: replace(a.value_range.kept(-a.value_range.size, a.value_range.size), zeros=True),
        given={"other": _always(1, -1, -0.0)},
    )
    yield derived(
        "heaviside",
        "pointwise",
        {"self": exactly, "values": also(numeric, same_dtype, broadcasts)},
        lambda a, b: integers(0, 1).join(b.value_range),
    )
    yield derived(
        "hypot",
        "pointwise",
        {"self": floating, "other": _floats_like(at_least(0.1))},
        lambda a, b: between(0, a.value_range.size + b.value_range.size, a.value_range, b.value_range),
        in_place=True,
    )
    yield derived(
        "logaddexp2",
        "pointwise",
        {"self": floating, "other": _floats_like()},
        lambda a, b: between(
            max(a.value_range.low, b.value_range.low),
            max(a.value_range.high, b.value_range.high) + 1,
            a.value_range,
            b.value_range,
        ),
    )
    for name in ("xlogy.Tensor", "special_xlog1py"):
        yield derived(
            name,
            "pointwise",
            {"self": floating, "other": _floats_like(at_least(0.1), no_larger_than(16))},
            lambda a, b: between(-3 * a.value_range.size, 3 * a.value_range.size, a.value_range, b.value_range),
        )
    yield derived(
        "special_zeta",
        "pointwise",
        {
            "self": also(floating, at_least(1.5), no_larger_than(8)),
            "other": _floats_like(at_least(0.5), no_larger_than(8)),
        },
        _bounded(0, 300),
    )
    yield derived(
        "prelu",
        "pointwise",
        {
            "self": also(floating, unkinked_at(0.0), ranked(2), nonempty),
            "weight": lambda v, a: floating(v) and v.dtype == a.dtype and v.shape == a.shape[1:2],
        },
        lambda a, b: between(
            -max(1, b.value_range.size) * a.value_range.size,
            max(1, b.value_range.size) * a.value_range.size,
            a.value_range,
        ),
    )


def _floats_like(*conditions: Wanted) -> Wanted:
    return also(floating, same_dtype, broadcasts, *conditions)


def _has_unit(value: ProgramValue, *before: ProgramValue) -> bool:
    return value.value_range.unit is not None and value.value_range.unit >= 1 and value.value_range.ordinary


def _rounded_decimals(a: ProgramValue, decimals: int) -> ValueRange:
    # Tens are represented exactly, tenths only where they are whole.
    return replace(integers(a.value_range.low - 5, a.value_range.high + 5), zeros=False)


def _complex() -> Iterator[Operator]:
    operands = (floating, also(floating, _complex_part))
    number = "torch.complex({a}, {b})"
    nonzero = also(floating, at_least(0.1))

    def complex_operator(name: str, template: str, value_range: Ranges, first: Wanted = floating) -> Operator:
        return Operator(f"complex_{name}", "pointwise", template, (first, operands[1]), value_range)

    def both(a: ProgramValue, b: ProgramValue) -> ValueRange:
        return a.value_range.join(b.value_range)

    def squared(a: ProgramValue, b: ProgramValue) -> ValueRange:
        reach = 2 * max(a.value_range.size, b.value_range.size) ** 2
        return between(-reach, reach, a.value_range, b.value_range)

    def quotient(a: ProgramValue, b: ProgramValue) -> ValueRange:
        reach = (a.value_range.size + b.value_range.size) / a.value_range.low
        return between(-reach, reach, a.value_range, b.value_range)

    yield complex_operator(
        "abs",
        f"torch.abs({number})",
        lambda a, b: between(0, a.value_range.size + b.value_range.size, a.value_range),
        nonzero,
    )
    yield complex_operator("angle", f"torch.angle({number})", _bounded(-3.2, 3.2), nonzero)
    yield complex_operator("parts", f"torch.view_as_real({number})", both)
    yield complex_operator(
        "conjugate",
        f"torch.view_as_real(torch.conj({number}).resolve_conj())",
        lambda a, b: a.value_range.join(replace(b.value_range, low=-b.value_range.high, high=-b.value_range.low)),
    )
    yield complex_operator("product", f"({number} * torch.complex({{b}}, {{a}})).imag", squared)
    yield complex_operator(
        "real_of_conjugate", f"torch.conj({number}).real.clone()", lambda a, b: a.value_range.repeated()
    )
    yield complex_operator("quotient", f"torch.view_as_real({number} / torch.complex({{a}}, {{a}}))", quotient, nonzero)
    yield complex_operator(
        "polar",
        "torch.polar({a}, {b}).real.clone()",
        lambda a, b: between(-a.value_range.size, a.value_range.size, a.value_range),
        also(floating, no_larger_than(32)),
    )
    yield complex_operator("sum", f"torch.sum({number}).real.clone()", lambda a, b: a.value_range.summed(a.count))
    yield complex_operator("scaled", f"(2.0 * {number} + {{a}}).imag.clone()", lambda a, b: b.value_range.scaled(2.0))
    edges = also(numeric, signed, without_gradient)
    yield Operator(
        "complex_angle_of_edges",
        "pointwise",
        f"torch.angle({number})",
        (edges, also(edges, _complex_part)),
        _bounded(-3.2, 3.2),
    )
    # On the edge of the plane's cut signs of zeros decide: 0.0 and -0.0 are drawn by "edges".
    yield Operator(
        "complex_angle_of_real",
        "pointwise",
        "torch.angle({a})",
        (also(numeric, signed, without_gradient),),
        _bounded(0, 3.2),
    )


def _complex_part(value: ProgramValue, a: ProgramValue) -> bool:
    """Want the imaginary parts of complex numbers whose real parts the first operand is."""
    return value.dtype in ("float32", "float64") and value.dtype == a.dtype and value.shape == a.shape


def _bit_views() -> Iterator[Operator]:
    for source, target in (("float32", "int32"), ("float16", "int16"), ("bfloat16", "int16"), ("float64", "int64")):
        wanted = also(real, bits, without_gradient, _of_dtype(source))
        yield Operator(
            f"bits_of_{source}", "cast", f"{{a}}.view(torch.{target})", (wanted,), functools.partial(_limits_of, target)
        )
    yield Operator(
        "bits_of_int64",
        "cast",
        "{a}.view(torch.int32)",
        (also(integer, lambda v, *b: v.dtype == "int64", ranked(1)),),
        functools.partial(_limits_of, "int32"),
    )
    yield Operator(
        "rounded_twice",
        "cast",
        "{a}.to(torch.float16).to(torch.float32)",
        (also(numeric, exact, lambda v, *b: v.dtype == "float32" and v.value_range.size < 60000),),
        lambda a: _widened(a.value_range),
    )
    yield Operator(
        "rounded_to_bfloat16",
        "cast",
        "{a}.to(torch.bfloat16).to(torch.float32)",
        (also(numeric, exact, lambda v, *b: v.dtype == "float32"),),
        lambda a: _widened(a.value_range),
    )


def _widened(value_range: ValueRange) -> ValueRange:
    """Return the range of elements that are rounded to a narrower dtype and back."""
    reach = value_range.size / 128
    return replace(value_range.kept(value_range.low - reach, value_range.high + reach), unit=None)


def _of_dtype(dtype: str) -> Wanted:
    """Return the condition of finite elements of ``dtype``: NaN has many bit patterns."""
    return lambda value, *before: value.dtype == dtype and value.value_range.finite


def _limits_of(dtype: str, a: ProgramValue) -> ValueRange:
    return integers(*LIMITS[dtype])


# Reductions


def _reductions() -> Iterator[tuple[Operator, ...]]:
    rows = {"self": also(_any_finite, _ROWS)}
    everything = {"self": also(_any_finite, nonempty)}
    yield derived("sum.dim_IntList", "reduction", rows, _summed)
    yield derived("sum", "reduction", everything, _summed)
    floats = {"self": also(numeric, _ROWS)}
    yield derived("mean.dim", "reduction", floats, _averaged, given={"dtype": _float_dtypes})
    yield derived("mean", "reduction", {"self": also(numeric, nonempty)}, _averaged, given={"dtype": _float_dtypes})
    yield derived("nansum", "reduction", {"self": also(real, agreed, _ROWS)}, _summed, given={"dtype": _float_dtypes})
    yield derived("nanmean", "reduction", floats, _averaged, given={"dtype": _float_dtypes})
    factors = also(
        _any_finite,
        _ROWS,
        lambda v, *b: max(v.shape) <= 5,
        lambda v, *b: v.value_range.low >= 0.1 or not v.requires_grad,
    )
    yield derived("prod.dim_int", "reduction", {"self": factors}, _multiplied_up)
    for name in ("amax", "amin"):
        yield derived(name, "reduction", {"self": also(_number, _ROWS, unkinked)}, _extreme)
    yield derived(
        "aminmax",
        "reduction",
        {"self": also(_number, _ROWS, unkinked)},
        lambda a, **p: (_extreme(a), _extreme(a)),
        given={"dim": _dims_of_value},
    )
    spread = {"self": also(numeric, _ROWS, _several_rows)}
    yield derived("var.correction", "reduction", spread, _variance)
    yield derived("std.correction", "reduction", {"self": also(spread["self"], without_gradient, _varied)}, _spread)
    yield derived("var_mean.correction", "reduction", spread, lambda a, **p: (_variance(a), _averaged(a, p["dim"])))
    yield derived(
        "std_mean.correction",
        "reduction",
        {"self": also(spread["self"], without_gradient, _varied)},
        lambda a, **p: (_spread(a), _averaged(a, p["dim"])),
    )
    away = also(floating, _ROWS, at_least(0.1))
    yield derived(
        "linalg_vector_norm",
        "reduction",
        {"self": away},
        _normed,
        given={"dtype": _float_dtypes, "ord": _always(2, 1, 3, 0.5)},
    )
    yield derived("norm.ScalarOpt_dim", "reduction", {"self": away}, _normed, given={"p": _always(2, 1, 3)})
    yield derived("norm.Scalar", "reduction", {"self": away}, _normed, given={"p": _always(2, 1, 3)})
    yield derived(
        "renorm",
        "reduction",
        {"self": also(away, ranked(2))},
        lambda a, **p: between(0, a.value_range.high, a.value_range),
        given={"maxnorm": _always(1.0, 0.5), "p": _always(2.0, 1.0)},
    )
    for name in ("any", "all"):
        yield derived(name, "reduction", {"self": also(anything, exact)}, _truth)
        yield derived(f"{name}.dim", "reduction", {"self": also(anything, exact, _ROWS)}, _truth)
        yield derived(f"{name}.dims", "reduction", {"self": also(anything, exact, _ROWS)}, _truth)
    yield derived(
        "count_nonzero.dim_IntList",
        "reduction",
        {"self": also(anything, exact, _ROWS)},
        lambda a, **p: integers(0, a.count),
        given={"dim": _dim_tuples},
    )
    yield derived("cumsum", "reduction", {"self": also(_any_finite, _ROWS)}, _summed, in_place=True)
    yield derived("cumprod", "reduction", {"self": factors}, _multiplied_up)
    yield derived(
        "logcumsumexp",
        "reduction",
        {"self": also(floating, _ROWS)},
        lambda a, dim: between(a.value_range.low, a.value_range.high + math.log(a.shape[dim]), a.value_range),
    )
    yield derived(
        "logsumexp",
        "reduction",
        {"self": also(floating, _ROWS)},
        lambda a, **p: between(a.value_range.low, a.value_range.high + math.log(a.count), a.value_range),
    )
    for name in ("cummax", "cummin"):
        yield derived(name, "reduction", {"self": also(_number, _ROWS, exact)}, lambda a, **p: _extreme(a), first=True)
    yield derived(
        "trace",
        "reduction",
        {"self": also(_number, ranked(2, 2), nonempty)},
        lambda a: a.value_range.summed(min(a.shape)),
    )
    yield derived(
        "histc",
        "reduction",
        {"self": also(numeric, exact, nonempty, without_gradient)},
        lambda a, **p: integers(0, a.count),
        given={"bins": _always(4, 8), "min": _always(-2), "max": _always(2, 6)},
    )
    yield derived(
        "diff",
        "reduction",
        {"self": also(_number, _ROWS)},
        lambda a, **p: difference(a.value_range, a.value_range),
        given={"n": _always(1)},
    )
    yield derived(
        "trapezoid.dx",
        "reduction",
        {"y": also(numeric, _ROWS)},
        lambda a, **p: replace(a.value_range.summed(a.count), unit=None),
        given={"dx": _always(1, 2)},
    )


def _float_dtypes(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[str | None]:
    return None, "float64", "float32"


def _dims_of_value(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int]:
    return (*range(values[0].rank), -1)


def _dim_tuples(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[tuple[int, ...]]:
    return [(dim,) for dim in range(values[0].rank)]


def _several_rows(value: ProgramValue, *before: ProgramValue) -> bool:
    # Of one element, and of two with a correction of 2, the variance is none.
    return min(value.shape) >= 3


def _varied(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want elements that differ along each dimension, so that no square root is taken of a rounding error."""
    sample = value.tensor.detach().double()
    return all(bool((sample.std(dim) > 1e-3 * sample.abs().amax(dim)).all()) for dim in range(value.rank))


def _at_extreme() -> Iterator[Operator]:
    """Yield choices by position: what stands there is judged, not which of several equal positions it is."""
    for name, keyword in (("argmax", ""), ("argmin", "")):
        yield Operator(
            f"at_{name}",
            "sort",
            f"torch.take_along_dim({{a}}, torch.{name}({{a}}, {{dim}}, keepdim=True), {{dim}}){keyword}",
            (also(_number, exact, _ROWS, without_gradient),),
            _extreme,
            lambda values, picks: {"dim": picks.below(values[0].rank)},
        )
    yield Operator(
        "values_sorted",
        "sort",
        "torch.sort({a}, {dim}, descending={descending})[0]",
        (also(anything, exact, _ROWS, without_gradient),),
        lambda a, **p: replace(a.value_range, zeros=False),
        lambda values, picks: {"dim": picks.below(values[0].rank), "descending": picks.flag()},
    )
    yield Operator(
        "values_topk",
        "sort",
        "torch.topk({a}, {k}, {dim}, largest={largest})[0]",
        (also(_number, exact, _ROWS, without_gradient),),
        lambda a, **p: replace(a.value_range.repeated(), zeros=False),
        lambda values, picks: _topk(values, picks),
    )
    yield Operator(
        "values_max",
        "sort",
        "torch.max({a}, {dim})[0]",
        (also(anything, exact, _ROWS, without_gradient),),
        _extreme,
        lambda values, picks: {"dim": picks.below(values[0].rank)},
    )
    yield Operator(
        "values_median",
        "sort",
        "torch.median({a}, {dim})[0]",
        (also(_number, exact, _ROWS, without_gradient),),
        _extreme,
        lambda values, picks: {"dim": picks.below(values[0].rank)},
    )
    yield Operator(
        "values_kth",
        "sort",
        "torch.kthvalue({a}, {k}, {dim})[0]",
        (also(_number, exact, _ROWS, without_gradient),),
        _extreme,
        lambda values, picks: {"dim": (dim := picks.below(values[0].rank)), "k": 1 + picks.below(values[0].shape[dim])},
    )
    for dims, size in ((2, "2"), (3, "3")):
        samples = f"torch.full((*{{a}}.shape[:2], {size}), 0.3, dtype={{a}}.dtype, device={{a}}.device)"
        yield Operator(
            f"fractional_max_pool{dims}d",
            "convolution",
            f"torch.ops.aten.fractional_max_pool{dims}d.default({{a}}, {(2,) * dims}, {(1,) * dims}, {samples})",
            (also(numeric, distinct, nonempty, ranked(dims + 2, dims + 2), _wide),),
            lambda a: (a.value_range.repeated(), integers(0, a.count)),
            results=2,
        )
    yield Operator(
        "searchsorted",
        "sort",
        "torch.searchsorted(torch.sort({a})[0], {b}, right={right}, out_int32={out_int32})",
        (also(_number, exact, ranked(1, 1), nonempty), also(_number, exact, same_dtype, ranked(1))),
        lambda a, b, **p: integers(0, a.count),
        lambda values, picks: {"right": picks.flag(), "out_int32": picks.flag()},
    )
    yield Operator(
        "bucketize_sorted",
        "sort",
        "torch.bucketize({b}, torch.sort({a})[0], right={right}, out_int32={out_int32})",
        (also(_number, exact, ranked(1, 1), nonempty), also(_number, exact, same_dtype, ranked(1))),
        lambda a, b, **p: integers(0, a.count),
        lambda values, picks: {"right": picks.flag(), "out_int32": picks.flag()},
    )


def _wide(value: ProgramValue, *before: ProgramValue) -> bool:
    return min(value.shape[2:]) >= 3


def _topk(values: Sequence[ProgramValue], picks: Any) -> dict[str, Any]:
    dim = picks.below(values[0].rank)
    return {"dim": dim, "k": 1 + picks.below(values[0].shape[dim]), "largest": not picks.flag()}


def _sorting() -> Iterator[tuple[Operator, ...]]:
    ordered = {"self": also(anything, exact, _ROWS, bits)}
    single = {"self": also(anything, distinct, _ROWS)}
    only = {"stable": _always(True)}
    yield derived("sort.stable", "sort", ordered, _sorted, given=only)
    yield derived("argsort.stable", "sort", ordered, _places, given=only)
    yield derived("sort", "sort", single, _sorted)
    yield derived("topk", "sort", single, _sorted, given={"k": _topk_counts, "dim": _dims_last_first})
    yield derived("msort", "sort", {"self": also(_number, exact, _ROWS)}, lambda a: replace(a.value_range, zeros=False))
    for name in ("argmax", "argmin"):
        yield derived(
            name, "sort", single, _places, given={"dim": lambda values, chosen: (None, *range(values[0].rank))}
        )
    numbers = {"self": also(single["self"], _number)}
    for name in ("max.dim", "min.dim", "median.dim", "nanmedian.dim", "mode"):
        yield derived(name, "sort", numbers, _chosen)
    yield derived("kthvalue", "sort", numbers, _chosen, given={"dim": _dims_last_first, "k": _smallest_counts})


def _topk_counts(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int]:
    return tuple(range(1, 1 + min(min(values[0].shape), 4)))


_smallest_counts = _topk_counts


def _dims_last_first(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int]:
    return (-1, *range(values[0].rank))


# Reading and writing by index


def _dims_for(values: Sequence[ProgramValue]) -> list[int]:
    """Return the dimensions along which the index, the second operand, can stand for elements of the first."""
    a, index = values[0], values[1]
    return [dim for dim in range(a.rank) if index.value_range.high < a.shape[dim]]


def _elements(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int]:
    a, index = values[0], values[1]
    return [
        dim
        for dim in _dims_for(values)
        if all(index.shape[other] <= a.shape[other] for other in range(a.rank) if other != dim)
    ]


def _rows(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int]:
    a, index, *others = values
    found = _dims_for(values)
    if others:
        source = others[0].shape
        found = [dim for dim in found if source == (*a.shape[:dim], *index.shape, *a.shape[dim + 1 :])]
    return found


def _index_of_elements(value: ProgramValue, a: ProgramValue, *others: ProgramValue) -> bool:
    return _index(value) and value.rank == a.rank >= 1 and bool(_elements([a, value], {}))


def _index_of_rows(value: ProgramValue, a: ProgramValue, *others: ProgramValue) -> bool:
    return _index(value) and value.rank == 1 and bool(_dims_for([a, value]))


def _one_each(value: ProgramValue, a: ProgramValue, b: ProgramValue) -> bool:
    return value.dtype == a.dtype and value.shape == b.shape and _number(value)


def _row_each(value: ProgramValue, a: ProgramValue, b: ProgramValue) -> bool:
    return value.dtype == a.dtype and _number(value) and bool(_rows([a, b, value], {}))


def _gathered(a: ProgramValue, b: ProgramValue, c: ProgramValue, alpha: float = 1, **parameters: Any) -> ValueRange:
    return total(a.value_range, c.value_range.scaled(alpha).summed(max(b.count, 1)))


def _reduced(a: ProgramValue, b: ProgramValue, c: ProgramValue, reduce: str, **parameters: Any) -> ValueRange:
    """Return the range of what a scatter with a reduction leaves."""
    held = a.value_range.join(c.value_range)
    if reduce in ("amax", "amin"):
        return replace(held, zeros=False)
    if reduce in ("sum", "add"):
        return total(a.value_range, c.value_range.summed(b.count)).join(c.value_range.summed(b.count))
    if reduce == "mean":
        # A quotient of integers is cut or floored, and of floats rounded.
        return replace(held, unit=None, exact=not a.is_float, low=min(held.low, 0), high=max(held.high, 0))
    size = max(held.size, 1.0) ** (b.count + 1)
    unit = None if held.unit is None else min(held.unit, 1.0) ** (b.count + 1)
    return replace(between(-size, size, held), unit=unit, zeros=False)


def _scattering() -> Iterator[tuple[Operator, ...]]:
    table = also(_any_finite, _ROWS)
    numbers = also(_number, _ROWS)
    element = {"self": table, "index": _index_of_elements}
    along = {"dim": _elements}
    yield derived("gather", "index", element, _repeated, given={**along, "sparse_grad": _always(False)})
    yield derived("index_select", "index", {"self": table, "index": _index_of_rows}, _repeated, given={"dim": _rows})
    yield derived(
        "take",
        "index",
        {
            "self": also(_any_finite, nonempty),
            "index": lambda v, a: _index(v) and v.rank >= 1 and v.value_range.high < a.count,
        },
        _repeated,
    )
    single = also(_index_of_elements, distinct)
    yield derived(
        "scatter.src",
        "scatter",
        {"self": numbers, "index": single, "src": _one_each},
        lambda a, b, c, **p: a.value_range.join(c.value_range),
        given=along,
        in_place=True,
    )
    yield derived(
        "scatter.value",
        "scatter",
        {"self": numbers, "index": _index_of_elements},
        lambda a, b, value, **p: a.value_range.join(constant(value)),
        given=along,
        in_place=True,
    )
    scatter = {"self": numbers, "index": _index_of_elements, "src": _one_each}
    plain = {
        "self": also(numbers, without_gradient),
        "index": _index_of_elements,
        "src": also(_one_each, without_gradient),
    }
    yield derived(
        "scatter.reduce",
        "scatter",
        plain,
        lambda a, b, c, reduce, **p: _reduced(a, b, c, {"multiply": "prod"}.get(reduce, reduce)),
        given={**along, "reduce": _always("add", "multiply")},
        in_place=True,
    )
    yield derived(
        "scatter.value_reduce",
        "scatter",
        {"self": also(numbers, without_gradient), "index": _index_of_elements},
        _reduced_by_value,
        given={**along, "reduce": _always("add", "multiply"), "value": _always(2, -1, 1)},
        in_place=True,
    )
    yield derived("scatter_add", "scatter", scatter, _gathered, given=along, in_place=True)
    yield derived("scatter_reduce.two", "scatter", plain, _reduced, given=along, in_place=True)
    rows = {"self": numbers, "index": _index_of_rows, "source": _row_each}
    yield derived("index_add", "scatter", rows, _gathered, given={"dim": _rows}, in_place=True)
    yield derived(
        "index_copy",
        "scatter",
        {**rows, "index": also(_index_of_rows, distinct)},
        lambda a, b, c, **p: a.value_range.join(c.value_range),
        given={"dim": _rows},
        in_place=True,
    )
    yield derived(
        "index_fill.int_Scalar",
        "scatter",
        {"self": numbers, "index": _index_of_rows},
        lambda a, b, value, **p: a.value_range.join(constant(value)),
        given={"dim": _rows},
        in_place=True,
    )
    yield derived(
        "index_reduce",
        "scatter",
        {"self": also(numbers, without_gradient), "index": _index_of_rows, "source": also(_row_each, without_gradient)},
        _reduced,
        given={"dim": _rows, "reduce": _always("prod", "mean", "amax", "amin")},
        in_place=True,
    )
    yield derived(
        "put",
        "scatter",
        {
            "self": also(_number, nonempty),
            "index": also(lambda v, a, *o: _index(v) and v.rank >= 1 and v.value_range.high < a.count, distinct),
            "source": _one_each,
        },
        lambda a, b, c, **p: a.value_range.join(total(a.value_range, c.value_range)).join(c.value_range),
        in_place=True,
    )
    yield derived(
        "masked_scatter",
        "scatter",
        {"self": numbers, "mask": also(boolean, same_shape), "source": also(_number, same_dtype, same_shape)},
        lambda a, b, c: a.value_range.join(c.value_range),
        in_place=True,
    )
    yield from _slices_scattered()


def _reduced_by_value(a: ProgramValue, b: ProgramValue, value: float, reduce: str, **parameters: Any) -> ValueRange:
    if reduce == "add":
        return total(a.value_range, constant(value).summed(b.count))
    reach = a.value_range.size * max(abs(value), 1) ** b.count
    return replace(between(-reach, reach, a.value_range), unit=a.value_range.unit, zeros=a.value_range.zeros)


def _slices_scattered() -> Iterator[tuple[Operator, ...]]:
    table = also(_any_finite, _ROWS)

    def join(a: ProgramValue, b: ProgramValue, **parameters: Any) -> ValueRange:
        return a.value_range.join(b.value_range)

    def dims_without(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int]:
        a, source = values
        return [dim for dim in range(a.rank) if source.shape == (*a.shape[:dim], *a.shape[dim + 1 :])]

    def dims_shorter(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int]:
        a, source = values
        return [
            dim
            for dim in range(a.rank)
            if source.rank == a.rank
            and 0 < source.shape[dim] <= a.shape[dim]
            and all(source.shape[other] == a.shape[other] for other in range(a.rank) if other != dim)
        ]

    def starts(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int | None]:
        a, source = values
        room = a.shape[chosen["dim"]] - source.shape[chosen["dim"]]
        return (None, room, -source.shape[chosen["dim"]]) if room else (None, 0)

    def ends(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int | None]:
        source, start = values[1], chosen["start"] or 0
        end = start + source.shape[chosen["dim"]]
        return (end if end else None,)

    yield derived(
        "select_scatter",
        "scatter",
        {"self": table, "src": also(_any_finite, same_dtype, lambda v, a: bool(dims_without([a, v], {})))},
        join,
        given={"dim": dims_without},
    )
    yield derived(
        "slice_scatter",
        "scatter",
        {"self": table, "src": also(_any_finite, same_dtype, lambda v, a: bool(dims_shorter([a, v], {})))},
        join,
        given={"dim": dims_shorter, "start": starts, "end": ends, "step": _always(1)},
    )
    yield derived(
        "diagonal_scatter",
        "scatter",
        {"self": also(_any_finite, ranked(2, 2), nonempty), "src": also(_any_finite, same_dtype, ranked(1, 1))},
        join,
        given={"dim1": _always(0), "dim2": _always(1)},
    )
    yield derived(
        "as_strided_scatter",
        "scatter",
        {
            "self": also(_any_finite, nonempty, lambda v, *b: v.tensor.is_contiguous()),
            "src": also(_any_finite, same_dtype, ranked(1, 1), nonempty, lambda v, a: v.count <= a.count),
        },
        join,
        given={
            "size": lambda values, chosen: (values[1].shape,),
            "stride": _always((1,)),
            "storage_offset": lambda values, chosen: (0, values[0].count - values[1].count),
        },
    )


# Products


def _products() -> Iterator[tuple[Operator, ...]]:
    matrix = also(numeric, nonempty, ranked(2, 2))
    vector = also(numeric, nonempty, ranked(1, 1))
    batch = also(numeric, nonempty, ranked(3, 3))

    def added(count: Callable[..., int]) -> Ranges:
        def value_range(
            a: ProgramValue, b: ProgramValue, c: ProgramValue, alpha: float = 1, beta: float = 1
        ) -> ValueRange:
            summed = product(a.value_range, b.value_range).summed(count(a, b)).scaled(alpha)
            # Of what is scaled by zero nothing comes through, not even NaN.
            return replace(summed, zeros=False) if beta == 0 else total(summed, c.value_range.scaled(beta))

        return value_range

    def third(shape: Callable[..., tuple[int, ...]]) -> Wanted:
        def fits(value: ProgramValue, a: ProgramValue, b: ProgramValue) -> bool:
            wanted = shape(a, b)
            pairs = zip(reversed(value.shape), reversed(wanted), strict=False)
            return (
                real(value)
                and value.dtype == a.dtype
                and value.rank <= len(wanted)
                and all(x in (y, 1) for x, y in pairs)
            )

        return fits

    inner = lambda a, b: a.shape[-1]  # noqa: E731
    whole = {rank: also(integer, nonempty, ranked(rank, rank)) for rank in (1, 2, 3)}

    def multiplied(a: ProgramValue, b: ProgramValue) -> ValueRange:
        return product(a.value_range, b.value_range).summed(a.shape[-1])

    # Of integers; those of floats stand where a user would write them.
    yield derived("mm", "matmul", {"self": whole[2], "mat2": also(whole[2], same_dtype, matrix_of)}, multiplied)
    yield derived(
        "bmm",
        "matmul",
        {
            "self": whole[3],
            "mat2": also(whole[3], same_dtype, lambda v, a: v.shape[0] == a.shape[0] and v.shape[1] == a.shape[2]),
        },
        multiplied,
    )
    yield derived(
        "mv",
        "matmul",
        {"self": whole[2], "vec": also(whole[1], same_dtype, lambda v, a: v.shape == a.shape[1:])},
        multiplied,
    )
    yield derived("dot", "matmul", {"self": whole[1], "tensor": also(whole[1], same_dtype, same_shape)}, multiplied)
    of_rows = also(matrix, same_dtype, matrix_of)
    yield derived(
        "addmm",
        "matmul",
        {"mat1": matrix, "mat2": of_rows, "self": third(lambda a, b: (a.shape[0], b.shape[1]))},
        added(inner),
        in_place=True,
    )
    yield derived(
        "addmv",
        "matmul",
        {
            "mat": matrix,
            "vec": also(vector, same_dtype, lambda v, a: v.shape == a.shape[1:]),
            "self": third(lambda a, b: (a.shape[0],)),
        },
        added(inner),
        in_place=True,
    )
    batched = also(batch, same_dtype, lambda v, a: v.shape[0] == a.shape[0] and v.shape[1] == a.shape[2])
    yield derived(
        "baddbmm",
        "matmul",
        {"batch1": batch, "batch2": batched, "self": third(lambda a, b: (*a.shape[:2], b.shape[2]))},
        added(inner),
        in_place=True,
    )
    yield derived(
        "addbmm",
        "matmul",
        {"batch1": batch, "batch2": batched, "self": third(lambda a, b: (a.shape[1], b.shape[2]))},
        added(lambda a, b: a.shape[0] * a.shape[2]),
        in_place=True,
    )
    yield derived(
        "addr",
        "matmul",
        {"vec1": vector, "vec2": also(vector, same_dtype), "self": third(lambda a, b: (a.count, b.count))},
        added(lambda a, b: 1),
        in_place=True,
    )
    three = also(numeric, lambda v, *b: 3 in v.shape)

    def dims_of_three(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int]:
        return [dim for dim, size in enumerate(values[0].shape) if size == 3]

    yield derived(
        "linalg_cross",
        "matmul",
        {"self": three, "other": also(numeric, same_dtype, same_shape)},
        lambda a, b, **p: replace(
            product(a.value_range, b.value_range).summed(2),
            low=-2 * a.value_range.size * b.value_range.size,
            high=2 * a.value_range.size * b.value_range.size,
        ),
        given={"dim": dims_of_three},
    )
    yield derived(
        "vdot",
        "matmul",
        {"self": vector, "other": also(vector, same_dtype, same_shape)},
        lambda a, b: product(a.value_range, b.value_range).summed(a.count),
    )
    yield derived(
        "inner",
        "matmul",
        {
            "self": also(numeric, nonempty, ranked(1)),
            "other": also(numeric, nonempty, ranked(1), same_dtype, lambda v, a: v.shape[-1] == a.shape[-1]),
        },
        lambda a, b: product(a.value_range, b.value_range).summed(a.shape[-1]),
    )
    yield derived(
        "cdist",
        "matmul",
        {
            "x1": also(floating, nonempty, ranked(2, 2), without_gradient),
            "x2": also(
                floating, nonempty, ranked(2, 2), same_dtype, without_gradient, lambda v, a: v.shape[1] == a.shape[1]
            ),
        },
        lambda a, b, **p: between(0, 4 * (a.value_range.size + b.value_range.size) * a.shape[1], a.value_range),
        given={"p": _always(1.0, 3.0)},
    )
    yield derived(
        "_int_mm",
        "matmul",
        {
            "self": also(integer, ranked(2, 2), lambda v, *b: v.dtype == "int8" and v.shape[0] > 16),
            "mat2": also(integer, same_dtype, matrix_of),
        },
        lambda a, b: integers(-(2**14) * a.shape[1], 2**14 * a.shape[1]),
    )


def _foreach() -> Iterator[tuple[Operator, ...]]:
    pair = (numeric, numeric)
    others = tuple(_beside(place) for place in (0, 1))

    def each(rule: Callable[..., ValueRange]) -> Ranges:
        def value_range(*values: ProgramValue, **parameters: Any) -> tuple[ValueRange, ...]:
            half = len(values) // 2
            return tuple(
                rule(values[place].value_range, values[half + place].value_range, **parameters) for place in range(half)
            )

        return value_range

    def each_alone(rule: Callable[..., ValueRange]) -> Ranges:
        return lambda *values, **parameters: tuple(rule(value.value_range, **parameters) for value in values)

    yield derived(
        "_foreach_add.List",
        "pointwise",
        {"self": pair, "other": others},
        each(lambda a, b, alpha: total(a, b.scaled(alpha))),
        in_place=True,
    )
    yield derived(
        "_foreach_sub.List",
        "pointwise",
        {"self": pair, "other": others},
        each(lambda a, b, alpha: difference(a, b.scaled(alpha))),
        in_place=True,
    )
    yield derived("_foreach_mul.List", "pointwise", {"self": pair, "other": others}, each(product), in_place=True)
    yield derived(
        "_foreach_maximum.List",
        "pointwise",
        {"self": pair, "other": tuple(also(one, _unkinked_with(place)) for place, one in enumerate(others))},
        each(lambda a, b: replace(a.join(b), zeros=False)),
        in_place=True,
    )
    yield derived(
        "_foreach_add.Scalar",
        "pointwise",
        {"self": pair},
        each_alone(lambda a, number: total(a, constant(number))),
        in_place=True,
    )
    yield derived(
        "_foreach_mul.Scalar",
        "pointwise",
        {"self": pair},
        each_alone(lambda a, number: a.scaled(number)),
        in_place=True,
    )
    yield derived(
        "_foreach_div.Scalar",
        "pointwise",
        {"self": pair},
        each_alone(lambda a, number: a.scaled(1 / number)),
        given={"scalar": _always(2, 4, 0.5, 3)},
        in_place=True,
    )

    def listed(rule: Callable[[ValueRange, float], ValueRange]) -> Ranges:
        return lambda *values, scalars: tuple(
            rule(value.value_range, number) for value, number in zip(values, scalars, strict=True)
        )

    lists = {"scalars": _always((2, 3), (0.5, -1), (1, 0))}
    yield derived(
        "_foreach_add.ScalarList",
        "pointwise",
        {"self": pair},
        listed(lambda a, number: total(a, constant(number))),
        given=lists,
        in_place=True,
    )
    yield derived(
        "_foreach_mul.ScalarList",
        "pointwise",
        {"self": pair},
        listed(lambda a, number: a.scaled(number)),
        given=lists,
        in_place=True,
    )
    yield derived(
        "_foreach_neg",
        "pointwise",
        {"self": pair},
        each_alone(lambda a: replace(a, low=-a.high, high=-a.low)),
        in_place=True,
    )
    yield derived(
        "_foreach_abs",
        "pointwise",
        {"self": (also(numeric, unkinked_at(0.0)),) * 2},
        each_alone(lambda a: a.kept(0, a.size)),
        in_place=True,
    )
    positive = (also(floating, at_least(0.1)),) * 2
    yield derived(
        "_foreach_sqrt", "pointwise", {"self": positive}, each_alone(lambda a: a.within(math.sqrt)), in_place=True
    )
    yield derived(
        "_foreach_exp",
        "pointwise",
        {"self": (also(floating, no_larger_than(4)),) * 2},
        each_alone(lambda a: a.within(math.exp)),
        in_place=True,
    )
    yield derived(
        "_foreach_lerp.Scalar",
        "pointwise",
        {"self": (floating,) * 2, "tensors1": tuple(also(floating, one) for one in others)},
        each(lambda a, b, weight: between(min(a.low, b.low), max(a.high, b.high), a, b)),
        in_place=True,
    )
    one = {
        "self": (numeric,),
        "tensor1": (also(numeric, same_dtype, same_shape),),
        "tensor2": (also(numeric, same_dtype, same_shape),),
    }

    def scaled_product(a: ProgramValue, b: ProgramValue, c: ProgramValue, value: float) -> ValueRange:
        return total(a.value_range, product(b.value_range, c.value_range).scaled(value))

    yield derived("_foreach_addcmul.Scalar", "pointwise", one, scaled_product, in_place=True)
    yield derived(
        "_foreach_norm.Scalar",
        "reduction",
        {"self": (also(floating, nonempty, at_least(0.1)),) * 2},
        lambda a, b, **p: (_normed(a), _normed(b)),
        given={"ord": _always(2, 1), "dtype": _always(None)},
    )
    yield derived(
        "_foreach_copy", "pointwise", {"self": pair, "src": others}, each(lambda a, b: b.repeated()), in_place=True
    )


def _beside(place: int) -> Wanted:
    """Return the condition of dtype and shape of the tensor at ``place`` of the list before."""
    return lambda value, *before: (
        numeric(value) and value.dtype == before[place].dtype and value.shape == before[place].shape
    )


def _unkinked_with(place: int) -> Wanted:
    return lambda value, *before: unkinked(value, before[place])


# Windows and images


def _images() -> Iterator[tuple[Operator, ...]]:
    def image(dims: int, *conditions: Wanted) -> Wanted:
        return also(numeric, nonempty, ranked(dims + 2, dims + 2), *conditions)

    def averaged(
        a: ProgramValue, kernel_size: tuple[int, ...] = (), divisor_override: int | None = None, **parameters: Any
    ) -> ValueRange:
        reach = a.value_range.summed(math.prod(kernel_size)) if divisor_override else a.value_range
        return between(min(reach.low, 0.0), max(reach.high, 0.0), a.value_range)

    for dims in (1, 2, 3):
        yield derived(f"avg_pool{dims}d", "convolution", {"self": image(dims)}, averaged)
        yield derived(f"adaptive_avg_pool{dims}d", "convolution", {"self": image(dims)}, averaged)
        yield derived(f"max_pool{dims}d", "convolution", {"self": image(dims, unkinked)}, _extreme)
        yield derived(
            f"adaptive_max_pool{dims}d",
            "convolution",
            {"self": image(dims, distinct)},
            lambda a, **p: (a.value_range.repeated(), integers(0, a.count)),
        )
        yield derived(
            f"upsample_nearest{dims}d.vec", "convolution", {"input": image(dims)}, _repeated, given=_scaled_sizes(dims)
        )
        yield derived(
            f"_upsample_nearest_exact{dims}d.vec",
            "convolution",
            {"input": image(dims)},
            _repeated,
            given=_scaled_sizes(dims),
        )
        yield derived(
            f"replication_pad{dims}d", "copy", {"self": image(dims)}, _repeated, given={"padding": _paddings(dims)}
        )
        yield derived(
            f"reflection_pad{dims}d", "copy", {"self": image(dims)}, _repeated, given={"padding": _paddings(dims)}
        )
        yield derived(
            f"conv{dims}d",
            "convolution",
            {"input": image(dims), "weight": also(image(dims), same_dtype, _weight)},
            _convolved,
            given=_steps(dims),
        )
        yield derived(
            f"conv_transpose{dims}d{'.input' if dims > 1 else ''}",
            "convolution",
            {"input": image(dims), "weight": also(image(dims), same_dtype, lambda v, a: v.shape[0] == a.shape[1])},
            _convolved,
            given=_steps(dims),
        )
    yield derived(
        "max_pool2d_with_indices",
        "convolution",
        {"self": image(2, distinct)},
        lambda a, **p: (a.value_range.repeated(), integers(0, a.count)),
    )
    smooth = image(2, floating)

    def interpolated(a: ProgramValue, **parameters: Any) -> ValueRange:
        return between(-2 * a.value_range.size, 2 * a.value_range.size, a.value_range)

    for name, dims in (
        ("upsample_linear1d", 1),
        ("upsample_bilinear2d", 2),
        ("upsample_bicubic2d", 2),
        ("upsample_trilinear3d", 3),
        ("_upsample_bilinear2d_aa", 2),
        ("_upsample_bicubic2d_aa", 2),
    ):
        yield derived(
            f"{name}.vec",
            "convolution",
            {"input": also(floating, image(dims))},
            interpolated,
            given=_scaled_sizes(dims),
        )
    yield derived(
        "constant_pad_nd",
        "copy",
        {"self": also(_any_finite, _ROWS)},
        lambda a, value, **p: a.value_range.join(constant(value)),
        given={"value": _always(0, 0.5, -1)},
    )
    yield derived(
        "pad",
        "copy",
        {"self": also(numeric, ranked(3, 4), nonempty)},
        lambda a, mode, value, **p: a.value_range.join(constant(value or 0)),
        given={"value": _only_of_constants},
    )
    yield derived(
        "pixel_unshuffle",
        "convolution",
        {"self": image(2, lambda v, *b: v.shape[2] % 2 == v.shape[3] % 2 == 0)},
        _repeated,
    )
    yield derived("pixel_shuffle", "convolution", {"self": image(2, lambda v, *b: v.shape[1] % 4 == 0)}, _repeated)
    yield derived(
        "channel_shuffle",
        "convolution",
        {"self": image(2)},
        _repeated,
        given={"groups": lambda values, chosen: [groups for groups in (2, 3, 1) if values[0].shape[1] % groups == 0]},
    )
    yield derived("im2col", "convolution", {"self": smooth}, lambda a, **p: a.value_range.join(constant(0)))
    yield derived(
        "col2im",
        "convolution",
        {"self": also(numeric, ranked(3, 3), nonempty)},
        lambda a, **p: a.value_range.summed(9),
        given={"output_size": _folded, "kernel_size": _always((1, 1))},
    )


def _folded(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[tuple[int, int]]:
    columns = values[0].shape[-1]
    return [(columns, 1), (1, columns), *([(2, columns // 2)] if columns % 2 == 0 else [])]


def _weight(value: ProgramValue, a: ProgramValue) -> bool:
    return (
        value.rank == a.rank
        and a.shape[1] % value.shape[1] == 0
        and all(k <= n + 2 for k, n in zip(value.shape[2:], a.shape[2:], strict=True))
    )


def _convolved(a: ProgramValue, b: ProgramValue, **parameters: Any) -> ValueRange:
    return product(a.value_range, b.value_range).summed(math.prod(b.shape) // min(b.shape[0], b.shape[1]))


def _steps(dims: int) -> dict[str, Choices]:
    def groups(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int]:
        return [values[0].shape[1] // values[1].shape[1]]

    return {"groups": groups}


def _scaled_sizes(dims: int) -> dict[str, Choices]:
    """Return either the size or the factors, of which an operator takes one."""
    return {
        "output_size": _always(None, (3,) * dims, tuple(range(2, 2 + dims)), (1,) * dims),
        "scale_factors": lambda values, chosen: (
            ((2.0,) * dims, (1.5,) * dims, (0.5,) * dims) if chosen.get("output_size") is None else (None,)
        ),
    }


def _paddings(dims: int) -> Choices:
    return _always((1, 0) * dims, (0, 1) * dims, (1, 1) * dims, (-1, 1) * dims, (0, -1) * dims)


def _only_of_constants(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[float | None]:
    return (None, 0.5, -1.0) if chosen["mode"] == "constant" else (None,)


def _movements() -> Iterator[tuple[Operator, ...]]:
    rows = {"self": also(anything, ranked(1))}
    square = {"self": also(anything, ranked(2))}
    yield derived(
        "roll",
        "copy",
        rows,
        _moved,
        given={
            "shifts": _always((1,), (-1,), (3,)),
            "dims": lambda values, chosen: [(dim,) for dim in range(values[0].rank)],
        },
    )
    yield derived("flip", "copy", rows, _moved)
    yield derived("rot90", "copy", square, _moved, given={"k": _always(1, 2, 3, -1), "dims": _always((0, 1), (1, 0))})
    yield derived("tril", "copy", square, _with_zero, in_place=True)
    yield derived("triu", "copy", square, _with_zero)
    yield derived(
        "diag_embed",
        "copy",
        {"self": also(anything, ranked(1, 2))},
        _with_zero,
        given={"dim1": _always(-2), "dim2": _always(-1)},
    )
    yield derived("diagonal_copy", "copy", square, _moved, given={"dim1": _always(0), "dim2": _always(1)})
    yield derived(
        "tile",
        "copy",
        {"self": also(anything, ranked(0, 3))},
        _repeated,
        given={"dims": _always((2,), (1, 2), (2, 1, 1))},
    )
    yield derived(
        "repeat_interleave.self_int",
        "copy",
        {"self": also(anything, ranked(1, 3))},
        _repeated,
        given={
            "repeats": _always(2, 3),
            "dim": lambda values, chosen: (None, *range(values[0].rank)),
            "output_size": _always(None),
        },
    )
    yield derived(
        "unfold_copy",
        "copy",
        {"self": also(anything, ranked(1, 3), nonempty)},
        _repeated,
        given={"size": _always(1, 2), "step": _always(1, 2)},
    )


def _with_zero(a: ProgramValue, **parameters: Any) -> ValueRange:
    return a.value_range.join(constant(0.0))


# Normalization and losses


def _normalizations() -> Iterator[tuple[Operator, ...]]:
    rows = {"self": also(floating, _ROWS)}
    yield derived("softmax.int", "norm", rows, _bounded(0, 1), given={"dtype": _float_dtypes})
    yield derived(
        "log_softmax.int",
        "norm",
        rows,
        lambda a, **p: between(a.value_range.low - a.value_range.high - math.log(max(a.count, 1)), 0, a.value_range),
        given={"dtype": _float_dtypes},
    )
    like = also(floating, same_dtype, same_shape)
    apart_from_zero = also(floating, _ROWS, at_least(0.1))
    yield derived(
        "cosine_similarity",
        "norm",
        {"x1": apart_from_zero, "x2": also(apart_from_zero, same_dtype, same_shape)},
        _bounded(-1.1, 1.1),
        given={"eps": _always(1e-8)},
    )
    yield derived(
        "pairwise_distance",
        "norm",
        {"x1": also(floating, ranked(2, 2), nonempty, without_gradient), "x2": also(like, without_gradient)},
        lambda a, b, **p: between(0, (a.value_range.size + b.value_range.size + 1) * a.count, a.value_range),
        given={"eps": _always(0.5, 1.0), "p": _always(2.0, 1.0)},
    )
    channels = _per_channel
    image = also(floating, nonempty, ranked(3, 5))
    # A small eps beside a variance of zero would make rounding errors as large as values.
    eps = {"eps": _always(0.5, 1.0)}

    def groups(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int]:
        return [count for count in (1, 2, 3) if values[0].shape[1] % count == 0]

    def scaled(a: ProgramValue, b: ProgramValue, c: ProgramValue, **parameters: Any) -> ValueRange:
        reach = math.sqrt(max(a.count, 1)) * b.value_range.size + c.value_range.size
        return between(-reach, reach, a.value_range)

    yield derived(
        "group_norm",
        "norm",
        {"input": image, "weight": channels, "bias": channels},
        scaled,
        given={**eps, "num_groups": groups},
    )
    last = _per_column
    shape = {"normalized_shape": lambda values, chosen: (values[0].shape[-1:],)}
    yield derived(
        "layer_norm",
        "norm",
        {"input": also(floating, _ROWS), "weight": last, "bias": last},
        scaled,
        given={**eps, **shape},
    )
    yield derived(
        "rms_norm",
        "norm",
        {"input": also(floating, _ROWS), "weight": last},
        lambda a, b, **p: scaled(a, b, b),
        given={**eps, **shape},
    )


def _per_channel(value: ProgramValue, a: ProgramValue, *others: ProgramValue) -> bool:
    return floating(value) and value.dtype == a.dtype and value.shape == a.shape[1:2]


def _per_column(value: ProgramValue, a: ProgramValue, *others: ProgramValue) -> bool:
    return floating(value) and value.dtype == a.dtype and value.shape == a.shape[-1:]


def _class_of_each_row(value: ProgramValue, a: ProgramValue, *others: ProgramValue) -> bool:
    held = value.value_range
    return value.dtype == "int64" and value.shape == a.shape[:1] and held.low >= 0 and held.high < a.shape[1]


def _with_statistics() -> Iterator[Operator]:
    """Yield normalizations that write to their running statistics, which their schema does not tell."""
    spread = also(floating, nonempty, ranked(3, 5), lambda v, *b: v.shape[0] * v.shape[-1] > 1)
    statistic = also(_per_channel, writable, without_gradient, apart)
    positive = also(statistic, at_least(0.1))

    def ranges(a: ProgramValue, b: ProgramValue, c: ProgramValue, **parameters: Any) -> tuple[ValueRange, ...]:
        reach = math.sqrt(max(a.count, 1))
        mean = between(
            min(a.value_range.low, b.value_range.low), max(a.value_range.high, b.value_range.high), a.value_range
        )
        variance = between(0, max(2 * (a.value_range.high - a.value_range.low) ** 2, c.value_range.high), a.value_range)
        return between(-reach, reach, a.value_range), mean, variance

    for name, keyword in (("batch_norm", "training=True"), ("instance_norm", "use_input_stats=True")):
        yield Operator(
            f"{name}_with_statistics",
            "norm",
            f"torch.nn.functional.{name}({{a}}, {{b}}, {{c}}, {keyword}, momentum={{momentum}}, eps=0.5)",
            (spread, statistic, positive),
            ranges,
            lambda values, picks: {"momentum": picks.one_of((0.1, 0.5))},
            writes=(1, 2),
        )


def _losses() -> Iterator[tuple[Operator, ...]]:
    first = also(floating, _ROWS)
    like = also(floating, same_dtype, same_shape)
    classes = _class_of_each_row
    rows = also(floating, ranked(2, 2), nonempty)
    weight = also(_per_channel, at_least(0.1), without_gradient)
    without = also(like, without_gradient)

    def apart_by(
        a: ProgramValue, b: ProgramValue, *others: ProgramValue, reduction: int = 1, **parameters: Any
    ) -> ValueRange:
        size = a.value_range.size + b.value_range.size + 4
        return between(-4 * size, 4 * size, a.value_range).summed(a.count if reduction == 2 else 1)

    def squared(a: ProgramValue, b: ProgramValue, reduction: int = 1, **parameters: Any) -> ValueRange:
        apart_ = difference(a.value_range, b.value_range)
        square = product(apart_, apart_).kept(0, apart_.size**2)
        if reduction == 2:
            return square.summed(max(a.count, 1))
        return square if reduction == 0 else replace(square, unit=None)

    yield derived("mse_loss", "norm", {"self": first, "target": like}, squared)
    for name in ("l1_loss", "smooth_l1_loss", "huber_loss"):
        given = {"beta": _always(1.0, 0.5), "delta": _always(1.0, 0.5)}
        yield derived(name, "norm", {"self": first, "target": also(like, unkinked)}, apart_by, given=given)

    def likelihood(a: ProgramValue, b: ProgramValue, reduction: int = 1, **parameters: Any) -> ValueRange:
        reach = 60 + 5 * b.value_range.size
        return between(-reach, reach, a.value_range).summed(a.count if reduction == 2 else 1)

    chance = lambda v, *b: v.value_range.low >= 0 and v.value_range.high <= 1  # noqa: E731
    inside = also(first, at_least(0.1), no_larger_than(0.9))
    yield derived("binary_cross_entropy", "norm", {"self": inside, "target": also(without, chance)}, apart_by)
    yield derived(
        "binary_cross_entropy_with_logits",
        "norm",
        {
            "self": first,
            "target": also(without, chance),
            "pos_weight": lambda v, a, *o: (
                floating(v)
                and v.dtype == a.dtype
                and v.shape == a.shape[-1:]
                and v.value_range.low >= 0.1
                and v.value_range.high <= 2
                and without_gradient(v)
            ),
        },
        lambda a, b, c, **p: apart_by(a, b, **p).scaled(3),
    )
    yield derived("nll_loss_nd", "norm", {"self": rows, "target": classes}, apart_by, given={"ignore_index": _ignored})
    yield derived(
        "cross_entropy_loss",
        "norm",
        {"self": rows, "target": classes, "weight": weight},
        lambda a, b, c, **p: apart_by(a, a, **p).scaled(max(1.0, c.value_range.high)),
        given={"ignore_index": _ignored},
    )
    yield derived(
        "kl_div",
        "norm",
        {"self": first, "target": also(without, at_least(0.1), no_larger_than(2))},
        lambda a, b, reduction, **p: apart_by(a, b, reduction=reduction).scaled(8.0),
    )
    sign = also(without, exact)
    yield derived(
        "soft_margin_loss",
        "norm",
        {"self": also(first, no_larger_than(8)), "target": also(sign, no_larger_than(3))},
        lambda a, b, **p: apart_by(a, b, **p).scaled(8),
    )
    yield derived(
        "margin_ranking_loss",
        "norm",
        {"input1": also(first, exact), "input2": also(like, exact), "target": lambda v, a, b: sign(v, a)},
        lambda a, b, c, **p: apart_by(a, b, **p).scaled(max(1, c.value_range.size)),
    )
    yield derived(
        "multi_margin_loss",
        "norm",
        {"self": also(rows, exact), "target": classes},
        lambda a, b, **p: apart_by(a, a, **p).scaled(16),
        given={"p": _always(1, 2), "margin": _always(1, 0.5)},
    )
    yield derived(
        "multilabel_margin_loss",
        "norm",
        {
            "self": also(rows, exact),
            "target": lambda v, a: (
                v.dtype == "int64"
                and v.shape == a.shape
                and v.value_range.low >= -1
                and v.value_range.high < a.shape[1]
            ),
        },
        lambda a, b, **p: apart_by(a, a, **p).scaled(a.count),
    )
    yield derived(
        "poisson_nll_loss",
        "norm",
        {"input": also(first, at_least(0.1), no_larger_than(4)), "target": also(without, at_least(1.1))},
        likelihood,
        given={"log_input": _always(True, False), "full": _always(False), "eps": _always(1e-8)},
    )
    near = also(rows, no_larger_than(4), without_gradient, lambda v, *b: v.shape[1] <= 16)
    # Of a margin that no distance reaches, so that no row is on the kink.
    yield derived(
        "triplet_margin_loss",
        "norm",
        {
            "anchor": near,
            "positive": also(near, same_dtype, same_shape),
            "negative": also(near, same_dtype, same_shape),
        },
        lambda a, b, c, reduction, **p: between(0, 256, a.value_range).summed(a.count if reduction == 2 else 1),
        given={"eps": _always(0.5), "margin": _always(160.0), "p": _always(2.0, 1.0)},
    )
    yield derived(
        "cosine_embedding_loss",
        "norm",
        {
            "input1": also(rows, at_least(0.1)),
            "input2": also(like, at_least(0.1)),
            "target": lambda v, a, b: (
                v.dtype == a.dtype
                and v.shape == a.shape[:1]
                and without_gradient(v)
                and floating(v)
                and v.value_range.exact
            ),
        },
        lambda a, *o, reduction, **p: between(0, 2.5, a.value_range).summed(a.count if reduction == 2 else 1),
        given={"margin": _always(0.0)},
    )


def _ignored(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int]:
    """Return classes to ignore: none where a mean, over no rows at all, would be NaN."""
    return (-100,) if chosen["reduction"] == 1 else (-100, 0, 1)


def derived_operators() -> tuple[Operator, ...]:
    """Return the operators that come from schemas, as far as this torch has them."""
    several = (
        *_arithmetic(),
        *_bitwise(),
        *_comparisons(),
        *_smooth(),
        *_reductions(),
        *_sorting(),
        *_scattering(),
        *_products(),
        *_foreach(),
        *_images(),
        *_movements(),
        *_normalizations(),
        *_losses(),
    )
    return (
        *(one for group in several for one in group),
        *_complex(),
        *_bit_views(),
        *_at_extreme(),
        *_with_statistics(),
    )


__all__ = ["derived_operators"]
