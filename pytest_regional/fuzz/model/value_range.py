"""What is known of a value for all inputs a program may be given, not just for those it was built with.

Fuzzed programs must not be checked where nothing is promised: at the jump of a step function, after an overflow, in a
tie between two maxima. An operator therefore says which value_range it needs of its operands and which its result has.

Rounding is one reason for doubt among several, and integers have none: sums and products of small integers have the
same bits in every correct order of evaluation. A range therefore carries the ``unit`` that all elements are multiples
of, and stays exact as long as its magnitudes are representable multiples of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

#: No rounded value of a generated program is larger: products of a few of them stay far from float16's 65504.
LARGEST = 512.0

#: Nor is one that is rounded and has one sign, so that no sum cancels, larger than this.
LARGEST_OF_ONE_SIGN = 1e36

#: Bits of the integers that a floating dtype holds all of.
DIGITS = {"float32": 24, "float64": 53, "bfloat16": 8, "float16": 11, "complex64": 24, "complex128": 53}

#: Limits of what integer dtypes hold, beyond which eager wraps round.
LIMITS = {
    "uint8": (0, 2**8 - 1),
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}


@dataclass(frozen=True)
class ValueRange:
    """What holds of all elements of one tensor.

    Attributes:
        low: no finite element is smaller.
        high: no finite element is larger.
        exact: every correct implementation computes these values (inputs, copies, integers), so a jump is safe here.
        distinct: no two elements are equal, so order and position of the largest are safe.
        finite: no element is NaN or infinite.
        unit: a power of two that every element is a multiple of; None where none is known.
        zeros: whether every correct implementation gives zeros the same sign.
    """

    low: float
    high: float
    exact: bool = False
    distinct: bool = False
    finite: bool = True
    unit: float | None = None
    zeros: bool = True

    @property
    def size(self) -> float:
        """The largest magnitude."""
        return max(abs(self.low), abs(self.high))

    @property
    def reasonable(self) -> bool:
        """Whether magnitudes stay where nothing overflows, and where sums that cancel leave no rounding errors."""
        if self.exact:
            return True
        one_sign = self.low >= 0 or self.high <= 0
        return self.size <= (LARGEST_OF_ONE_SIGN if one_sign else LARGEST)

    @property
    def ordinary(self) -> bool:
        """Whether magnitudes stay where no intermediate of any operator overflows in any dtype."""
        return self.size <= LARGEST

    def join(self, other: ValueRange) -> ValueRange:
        """Return what holds of a mix of elements of both."""
        return ValueRange(
            min(self.low, other.low),
            max(self.high, other.high),
            self.exact and other.exact,
            False,
            self.finite and other.finite,
            _finer(self, other),
            self.zeros and other.zeros,
        )

    def moved(self) -> ValueRange:
        """Return the range of the same elements elsewhere, each once at most: views, slices, permutations."""
        return self

    def repeated(self) -> ValueRange:
        """Return the range of elements that may occur several times."""
        return replace(self, distinct=False)

    def kept(self, low: float, high: float) -> ValueRange:
        """Return the range of elements that are chosen, or change their sign at most, and are then in other bounds."""
        return replace(self, low=low, high=high, distinct=False)

    def scaled(self, factor: float) -> ValueRange:
        """Return the range of elements times ``factor``, rounded."""
        ends = sorted((self.low * factor, self.high * factor))
        unit = None if self.unit is None else self.unit * unit_of(factor)
        return replace(
            self, low=ends[0], high=ends[1], exact=self.exact and abs(factor) == 1, distinct=False, unit=unit
        )

    def summed(self, count: int) -> ValueRange:
        """Return the range of sums of up to ``count`` elements."""
        count = max(count, 1)
        return ValueRange(
            min(0.0, self.low * count), max(0.0, self.high * count), finite=self.finite, unit=self.unit, zeros=False
        )

    def within(self, function: Callable[[float], float]) -> ValueRange:
        """Return the range after a function that rises or falls throughout, rounded."""
        ends = sorted((function(self.low), function(self.high)))
        return ValueRange(ends[0], ends[1], finite=self.finite)

    def settled(self, dtype: str) -> ValueRange:
        """Return what holds of a result of ``dtype`` that is bounded so, however its operands were combined.

        Multiples of a unit are exact while the dtype holds them all; integers that leave its limits wrap round.
        """
        if dtype == "bool":
            return integers(0, 1)
        if dtype in LIMITS:
            low, high = LIMITS[dtype]
            exact = self.exact or self.unit is not None
            return replace(self, exact=exact) if low <= self.low and self.high <= high else integers(low, high)
        if dtype not in DIGITS or self.unit is None:
            return self
        exact = self.finite and self.size <= self.unit * 2 ** DIGITS[dtype]
        return replace(self, exact=exact, unit=self.unit if exact else None)


def unit_of(number: float) -> float:
    """Return the largest power of two that ``number`` is a multiple of; 1 for 0."""
    if number == 0 or not math.isfinite(number):
        return 1.0
    numerator, denominator = float(number).as_integer_ratio()
    return (numerator & -numerator) / denominator


def _finer(first: ValueRange, second: ValueRange) -> float | None:
    return None if first.unit is None or second.unit is None else min(first.unit, second.unit)


def between(low: float, high: float, *operands: ValueRange) -> ValueRange:
    """Return the range of rounded results between two bounds, finite where all operands are."""
    return ValueRange(low, high, finite=all(operand.finite for operand in operands))


def integers(low: float, high: float, *, distinct: bool = False) -> ValueRange:
    """Return the range of integers or truth values, which are exact."""
    return ValueRange(low, high, exact=True, distinct=distinct, unit=1.0)


def constant(value: float) -> ValueRange:
    """Return the range of one number."""
    return ValueRange(value, value, exact=True, finite=math.isfinite(value), unit=unit_of(value))


def product(first: ValueRange, second: ValueRange) -> ValueRange:
    """Return the range of elementwise products."""
    ends = [a * b for a in (first.low, first.high) for b in (second.low, second.high)]
    unit = None if first.unit is None or second.unit is None else first.unit * second.unit
    return _combined(min(ends), max(ends), first, second, unit)


def total(first: ValueRange, second: ValueRange) -> ValueRange:
    """Return the range of elementwise sums."""
    return _combined(first.low + second.low, first.high + second.high, first, second, _finer(first, second))


def difference(first: ValueRange, second: ValueRange) -> ValueRange:
    """Return the range of elementwise differences."""
    return _combined(first.low - second.high, first.high - second.low, first, second, _finer(first, second))


def _combined(low: float, high: float, first: ValueRange, second: ValueRange, unit: float | None) -> ValueRange:
    return replace(between(low, high, first, second), unit=unit, zeros=first.zeros and second.zeros)
