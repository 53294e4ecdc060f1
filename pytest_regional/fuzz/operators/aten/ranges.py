"""What tensors ATen's operators take, and what holds of their results: what several modules of the table share."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pytest_regional.fuzz.model.arguments import (
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
    Parameters,
    ProgramValue,
    Wanted,
    also,
    broadcasts,
    floating,
    integer,
    nonempty,
    numeric,
    ranked,
    same_dtype,
)
from pytest_regional.fuzz.operators.schemas import Choices

Ranges = Callable[..., Any]


def any_number(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want floats or integers, no truth values."""
    return numeric(value) or integer(value)


def finite_or_truth(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want numbers or truth values."""
    return not value.unbacked and value.value_range.finite


def valid_index(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want indices that count from the front."""
    return value.dtype == "int64" and value.value_range.low >= 0 and not value.unbacked


def positive_divisor(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want what nothing divided by it overflows: least integers over -1 trap."""
    return value.value_range.low >= (0.1 if value.is_float else 1)


OTHER = also(any_number, broadcasts)


ROWS = also(ranked(1), nonempty)


def _mixed(*values: ProgramValue) -> tuple[ValueRange, ...]:
    """Return ranges of operands as they enter an operator that casts them to a common dtype."""
    ranges = tuple(value.value_range for value in values)
    if len({value.dtype for value in values}) == 1:
        return ranges
    # The common dtype may hold fewer integers than the operand's own.
    return tuple(one if one.unit is None or one.size <= 256 * one.unit else replace(one, unit=None) for one in ranges)


def added(a: ProgramValue, b: ProgramValue, alpha: float = 1, **parameters: Any) -> ValueRange:
    """Return the range of sums, the second operand scaled."""
    first, second = _mixed(a, b)
    return total(first, second.scaled(alpha))


def subtracted(a: ProgramValue, b: ProgramValue, alpha: float = 1, **parameters: Any) -> ValueRange:
    """Return the range of differences, the second operand scaled."""
    first, second = _mixed(a, b)
    return difference(first, second.scaled(alpha))


def reversed_difference(a: ProgramValue, b: ProgramValue, alpha: float = 1, **parameters: Any) -> ValueRange:
    """Return the range of differences the other way round."""
    return subtracted(b, a, alpha)


def multiplied(a: ProgramValue, b: ProgramValue, **parameters: Any) -> ValueRange:
    """Return the range of products."""
    return product(*_mixed(a, b))


def _quotients(a: ValueRange, low: float, high: float) -> list[float]:
    return [end / divisor for end in (a.low, a.high) for divisor in (low, high)]


def divided(a: ProgramValue, low: float, high: float) -> ValueRange:
    """Return the range of quotients, cut or floored, by what lies between ``low`` and ``high``."""
    ends = _quotients(a.value_range, low, high)
    return integers(math.floor(min(ends)), math.ceil(max(ends)))


def rest(a: ProgramValue, size: float, unit: float | None) -> ValueRange:
    """Return the range of remainders of a division by what is no larger than ``size``."""
    both = ValueRange(-size, size, exact=True, unit=unit, zeros=False)
    return replace(both, unit=both.join(a.value_range).unit)


def joined(*values: ProgramValue, **parameters: Any) -> ValueRange:
    """Return the range of a mix of all operands."""
    return functools.reduce(ValueRange.join, (value.value_range for value in values))


def joined_unsigned(*values: ProgramValue, **parameters: Any) -> ValueRange:
    """Return the range of a choice that does not say which of 0.0 and -0.0 is taken."""
    return replace(joined(*values), zeros=False)


def clamped(a: ProgramValue, min: float | None = None, max: float | None = None, **parameters: Any) -> ValueRange:
    """Return the range of elements moved between two bounds."""
    held = a.value_range
    if min is not None:
        held = raised(held, min)
    if max is not None:
        held = _lowered(held, max)
    return replace(held, zeros=False)


def raised(a: ValueRange, least: float) -> ValueRange:
    """Return the range of elements that are at least ``least``."""
    return _with_unit(a.kept(max(a.low, least), max(a.high, least)), a, least)


def _lowered(a: ValueRange, most: float) -> ValueRange:
    return _with_unit(a.kept(min(a.low, most), min(a.high, most)), a, most)


def _with_unit(made: ValueRange, a: ValueRange, number: float) -> ValueRange:
    return replace(made, unit=None if a.unit is None else min(a.unit, unit_of(number)))


def truth(*values: ProgramValue, **parameters: Any) -> ValueRange:
    """Return the range of truth values."""
    return integers(0, 1)


def all_bits(*values: ProgramValue, **parameters: Any) -> ValueRange:
    """Return the range of any bits of the operands' dtype."""
    if all(value.is_bool for value in values):
        return integers(0, 1)
    low, high = LIMITS[values[0].dtype]
    ranges = [value.value_range for value in values]
    if all(one.low >= 0 for one in ranges):
        return integers(0, 2 ** int(max(one.high for one in ranges)).bit_length() - 1)
    return integers(low, high)


def bounded(low: float, high: float) -> Ranges:
    """Return the rule that results are rounded, and lie between two bounds."""
    return lambda *values, **parameters: between(low, high, *(value.value_range for value in values))


def monotone(function: Callable[[float], float]) -> Ranges:
    """Return the rule of a function that rises or falls throughout."""
    return lambda a, **parameters: a.value_range.within(function)


def moved(a: ProgramValue, *others: ProgramValue, **parameters: Any) -> ValueRange:
    """Return the range of the first operand's elements elsewhere."""
    return a.value_range.moved()


def repeated(a: ProgramValue, *others: ProgramValue, **parameters: Any) -> ValueRange:
    """Return the range of the first operand's elements, each perhaps several times."""
    return a.value_range.repeated()


def _dims_of(a: ProgramValue, dim: Any) -> int:
    """Return how many elements lie along ``dim``: one dimension, several, or all."""
    if dim is None or dim == ():
        return max(a.count, 1)
    dims = dim if isinstance(dim, tuple) else (dim,)
    return math.prod(a.shape[one] for one in dims) if a.shape else 1


def summed(a: ProgramValue, dim: Any = None, dtype: str | None = None, **parameters: Any) -> ValueRange:
    """Return the range of sums over ``dim``."""
    held = a.value_range
    if dtype is not None and held.unit is not None and held.size > held.unit * 2**24:
        held = replace(held, unit=None)
    return held.summed(_dims_of(a, dim))


def averaged(a: ProgramValue, dim: Any = None, **parameters: Any) -> ValueRange:
    """Return the range of means over ``dim``; of 2, 4, 8 ... elements they are as exact as sums."""
    count = max(_dims_of(a, dim), 1)
    held = summed(a, dim)
    unit = None if held.unit is None or count & (count - 1) else held.unit / count
    return replace(held, low=min(a.value_range.low, 0), high=max(a.value_range.high, 0), unit=unit)


def spread(a: ProgramValue, **parameters: Any) -> ValueRange:
    """Return the range of standard deviations."""
    reach = a.value_range.high - a.value_range.low
    return between(0.0, 2 * reach, a.value_range)


def variance(a: ProgramValue, **parameters: Any) -> ValueRange:
    """Return the range of variances, for any correction."""
    return between(0.0, 2 * (a.value_range.high - a.value_range.low) ** 2, a.value_range)


def normed(a: ProgramValue, **parameters: Any) -> ValueRange:
    """Return the range of norms."""
    return between(0.0, a.value_range.size * max(a.count, 1), a.value_range)


def places(a: ProgramValue, dim: Any = None, **parameters: Any) -> ValueRange:
    """Return the range of positions along ``dim``."""
    count = a.count if dim is None else a.shape[dim] if a.shape else 1
    return integers(0, max(count - 1, 0))


def sorted_values(a: ProgramValue, dim: Any = -1, **parameters: Any) -> tuple[ValueRange, ValueRange]:
    """Return the ranges of sorted values and of their positions."""
    return replace(a.value_range, zeros=a.value_range.zeros), places(a, dim)


def chosen_values(a: ProgramValue, dim: Any = -1, **parameters: Any) -> tuple[ValueRange, ValueRange]:
    """Return the ranges of values that were chosen and of their positions."""
    return replace(a.value_range.repeated(), zeros=False), places(a, dim)


def extreme(a: ProgramValue, *others: ProgramValue, **parameters: Any) -> ValueRange:
    """Return the range of extremes: which of 0.0 and -0.0 is the larger one is nowhere said."""
    return replace(a.value_range.repeated(), zeros=False)


def multiplied_up(a: ProgramValue, dim: Any = None, **parameters: Any) -> ValueRange:
    """Return the range of products over ``dim``."""
    count = _dims_of(a, dim)
    size = max(a.value_range.size, 1.0) ** count
    unit = None if a.value_range.unit is None else min(a.value_range.unit, 1.0) ** count
    return replace(between(-size if a.value_range.low < 0 else 0.0, size, a.value_range), unit=unit, zeros=False)


def always(*choices: Any) -> Choices:
    """Return the same values for all operands."""
    return lambda values, chosen: choices


def chosen_of_two(a: ProgramValue, b: ProgramValue) -> ValueRange:
    """Return the range of a choice between two operands, cast to a common dtype."""
    first, second = _mixed(a, b)
    held = first.join(second)
    return replace(held, zeros=False, exact=held.exact and (a.dtype == b.dtype or held.unit is not None))


def floats_like(*conditions: Wanted) -> Wanted:
    """Return the condition of floats of the first operand's dtype that broadcast with it."""
    return also(floating, same_dtype, broadcasts, *conditions)


def float_dtypes(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[str | None]:
    """Return the dtypes that a result in floats may be asked for."""
    return None, "float64", "float32"


def with_zero(a: ProgramValue, **parameters: Any) -> ValueRange:
    """Return the range of the first operand's elements, and of zeros beside them."""
    return a.value_range.join(constant(0.0))
