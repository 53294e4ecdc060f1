"""``--regional-seed``."""

from __future__ import annotations

import re

import pytest

DRAW = """
    @pytest.mark.regional_compile(expects_regions=False)
    def test_one(regional):
        print("one", regional.randn(1).item())

    @pytest.mark.regional_compile(expects_regions=False)
    def test_two(regional):
        print("two", regional.randn(1).item())
"""


def run(downstream, *arguments):
    result = downstream(DRAW, "--regional-backend=aot_eager", "-s", "-q", "--no-header", *arguments)
    result.assert_outcomes(passed=2)
    return [float(found) for found in re.findall(r"(?:one|two) (-?\d+\.\d+)", result.stdout.str())]


def test_draws_depend_on_the_seed_and_the_test_and_on_nothing_else(downstream):
    first, again, other = run(downstream), run(downstream), run(downstream, "--regional-seed=7")
    assert len(set(first)) == 2, "two tests draw different numbers"
    assert first == again
    assert first != other


def test_a_wrong_value_is_a_usage_error(downstream):
    result = downstream(DRAW, "--regional-backend=aot_eager", "--regional-seed=x")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--regional-seed=x: expected a whole number*"])
