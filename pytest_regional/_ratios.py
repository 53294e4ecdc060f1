"""Ratios of measured times, with intervals that assume no distribution, and noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from statistics import NormalDist, median

#: What makes the median absolute deviation of a normal distribution its standard deviation.
_MAD_TO_DEVIATION = 1.4826

#: Above, distributions are taken for the normal one, from which they differ little.
_EXACT = 900


@dataclass(frozen=True)
class Ratio:
    """How many times as long something takes.

    Attributes:
        value: the estimate.
        low: the true ratio is lower with a probability of at most the error that was asked for.
        high: the true ratio is higher with a probability of at most that.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        high = f"{self.high:.2f}" if math.isfinite(self.high) else "any"
        return f"{self.value:.2f} ({self.low:.2f} to {high})"


def ratio_of(after: Sequence[float], before: Sequence[float], error: float = 0.005) -> Ratio:
    """Return the ratio of two samples of positive times, which need not be pairs.

    The estimate is that of Hodges and Lehmann (1963) for the logarithms: the median of all ratios of a time of one
    sample and a time of the other. The bounds are the ratios that the test of Mann and Whitney (1947) does not reject,
    with its exact distribution.

    Args:
        after: the sample in the numerator.
        before: the one in the denominator.
        error: probability with which the true ratio may be below ``low``, and the same above ``high``. Without enough
            times for it, the interval is that from 0 to infinity.
    """
    ratios = sorted(one / other for one in after for other in before)
    rejected = _rejected(len(after), len(before), error)
    value = math.exp(median(map(math.log, ratios)))
    if rejected == 0:
        return Ratio(value, 0.0, math.inf)
    return Ratio(value, ratios[rejected - 1], ratios[-rejected])


def noise_of(times: Sequence[float]) -> float:
    """Return the spread of positive times, relative to their median: 0.05 is 5 %.

    It is the median absolute deviation, scaled to be the standard deviation where times are normal.
    """
    middle = median(times)
    return _MAD_TO_DEVIATION * median(abs(one - middle) for one in times) / middle if middle else 0.0


@cache
def _rejected(one: int, other: int, error: float) -> int:
    """Return how many of the extreme ratios on one side lie outside of the interval."""
    if one * other > _EXACT:
        return _below(one * other / 2, math.sqrt(one * other * (one + other + 1) / 12), error)
    counts = _arrangements(one, other)
    most = error * math.comb(one + other, one)
    return next(number for number, below in enumerate(accumulate(counts)) if below > most)


def _arrangements(one: int, other: int) -> list[int]:
    """Return, for each value of Mann and Whitney's U, the number of orders of both samples that have it."""
    size = one * other + 1
    counts = [1] + [0] * (size - 1)
    for step in range(1, one + 1):
        for at in range(size - 1, other + step - 1, -1):
            counts[at] -= counts[at - other - step]
        for at in range(step, size):
            counts[at] += counts[at - step]
    return counts


def _below(mean: float, deviation: float, error: float) -> int:
    return math.floor(mean + deviation * NormalDist().inv_cdf(error))
