"""What is known of a value for all inputs a program may be given, not just for those it was built with.

Fuzzed programs must not be checked where nothing is promised: at the jump of a step function, after an overflow, in a
tie between two maxima. An operator therefore says which value_range it needs of its operands and which its result has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

#: No value of a generated program is larger: products of a few of them stay far from float16's 65504.
LARGEST = 512.0


@dataclass(frozen=True)
class ValueRange:
    """What holds of all elements of one tensor.

    Attributes:
        low: no finite element is smaller.
        high: no finite element is larger.
        exact: every correct implementation computes these bits (inputs, copies, integers), so a jump is safe here.
        distinct: no two elements are equal, so order and position of the largest are safe.
        finite: no element is NaN or infinite.
    """

    low: float
    high: float
    exact: bool = False
    distinct: bool = False
    finite: bool = True

    @property
    def size(self) -> float:
        """The largest magnitude."""
        return max(abs(self.low), abs(self.high))

    @property
    def reasonable(self) -> bool:
        """Whether magnitudes stay where nothing overflows in any dtype."""
        return self.size <= LARGEST

    def join(self, other: ValueRange) -> ValueRange:
        """Return what holds of a mix of elements of both."""
        return ValueRange(
            min(self.low, other.low),
            max(self.high, other.high),
            self.exact and other.exact,
            False,
            self.finite and other.finite,
        )

    def moved(self) -> ValueRange:
        """Return the range of the same elements elsewhere, each once at most: views, slices, permutations."""
        return self

    def repeated(self) -> ValueRange:
        """Return the range of elements that may occur several times."""
        return replace(self, distinct=False)

    def scaled(self, factor: float) -> ValueRange:
        """Return the range of elements times ``factor``, rounded."""
        ends = sorted((self.low * factor, self.high * factor))
        return ValueRange(ends[0], ends[1], finite=self.finite)

    def summed(self, count: int) -> ValueRange:
        """Return the range of sums of up to ``count`` elements."""
        count = max(count, 1)
        return ValueRange(min(0.0, self.low * count), max(0.0, self.high * count), exact=False, finite=self.finite)

    def within(self, function: Callable[[float], float]) -> ValueRange:
        """Return the range after a function that rises or falls throughout, rounded."""
        ends = sorted((function(self.low), function(self.high)))
        return ValueRange(ends[0], ends[1], finite=self.finite)


def between(low: float, high: float, *operands: ValueRange) -> ValueRange:
    """Return the range of rounded results between two bounds, finite where all operands are."""
    return ValueRange(low, high, finite=all(operand.finite for operand in operands))


def integers(low: float, high: float, *, distinct: bool = False) -> ValueRange:
    """Return the range of integers or truth values, which are exact."""
    return ValueRange(low, high, exact=True, distinct=distinct)


def product(first: ValueRange, second: ValueRange) -> ValueRange:
    """Return the range of elementwise products."""
    ends = [a * b for a in (first.low, first.high) for b in (second.low, second.high)]
    return between(min(ends), max(ends), first, second)


def total(first: ValueRange, second: ValueRange) -> ValueRange:
    """Return the range of elementwise sums."""
    return between(first.low + second.low, first.high + second.high, first, second)


def difference(first: ValueRange, second: ValueRange) -> ValueRange:
    """Return the range of elementwise differences."""
    return between(first.low - second.high, first.high - second.low, first, second)
