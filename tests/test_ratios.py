"""Ratios of times: exact intervals, estimates, noise."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from pytest_regional._ratios import _arrangements, noise_of, ratio_of


@pytest.mark.parametrize(("one", "other"), [(1, 1), (2, 3), (3, 3), (4, 2), (5, 4)])
def test_the_distribution_of_u_is_that_of_all_orders(one, other):
    counted = [0] * (one * other + 1)
    for places in itertools.combinations(range(one + other), one):
        counted[sum(place - number for number, place in enumerate(places))] += 1
    assert _arrangements(one, other) == counted


def test_the_estimate_is_the_median_of_all_ratios():
    assert ratio_of([2.0, 4.0, 6.0], [1.0, 1.0, 1.0]).value == pytest.approx(4.0)


def test_too_few_times_have_no_interval():
    ratio = ratio_of([1.0] * 4, [2.0] * 4)
    assert (ratio.low, ratio.high) == (0.0, math.inf)
    assert str(ratio) == "0.50 (0.00 to any)"


def test_five_times_of_each_have_one_from_the_extremes():
    ratio = ratio_of([1.2, 1.3, 1.4, 1.5, 1.6], [1.0] * 5)
    assert (ratio.low, ratio.high) == (1.2, 1.6)


def test_the_interval_misses_the_true_ratio_as_rarely_as_asked():
    draw = random.Random(0)
    trials, missed = 2000, 0
    for _ in range(trials):
        after = [1.3 * draw.lognormvariate(0, 0.2) for _ in range(8)]
        before = [draw.lognormvariate(0, 0.2) for _ in range(8)]
        ratio = ratio_of(after, before, 0.05)
        missed += not ratio.low <= 1.3 <= ratio.high
    # Both sides together: 10 % at most, in a sample of 2000.
    assert 0.05 < missed / trials < 0.12


def test_noise_is_relative_and_ignores_one_outlier():
    assert noise_of([1.0, 1.0, 1.0, 1.0, 9.0]) == 0
    assert noise_of([0.9, 1.0, 1.1]) == pytest.approx(0.14826)
    assert noise_of([0.0, 0.0]) == 0


def test_many_times_are_no_slower_to_compare_and_as_exact():
    ratio = ratio_of([1.0 + number / 1000 for number in range(60)], [1.0] * 60)
    assert 1.0 < ratio.low < ratio.value < ratio.high < 1.06
