"""``--regional-audit`` and ``requires``."""

from __future__ import annotations

import pytest

REQUIRES = """
    @pytest.mark.regional_compile(requires=("regions",), expects_regions=False)
    def test_works(regional):
        regional.assert_parity(block, *pair(regional))

    @pytest.mark.regional_compile(requires=("regions",), expects_regions=False)
    def test_does_not(regional):
        assert regional.run(block, *pair(regional)).region("mlp").partitions == 1
"""


def test_a_disclaimed_capability_skips_with_its_reason(downstream):
    result = downstream(REQUIRES, "--regional-backend=aot_eager")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*backend 'aot_eager' disclaims regions: nothing is compiled*"])


def test_a_claimed_capability_runs(downstream):
    downstream(REQUIRES, "--regional-backend=torch").assert_outcomes(passed=2)


def test_the_audit_fails_what_is_disclaimed_and_works(downstream):
    result = downstream(REQUIRES, "--regional-backend=aot_eager", "--regional-audit")
    result.assert_outcomes(failed=1, xfailed=1)
    result.stdout.fnmatch_lines(
        ["*XPASS(strict)*audit: backend 'aot_eager' disclaims regions*it works, so claim the capability*"]
    )


def test_ini(downstream, pytester):
    pytester.makeini("[pytest]\nregional_audit = true\n")
    downstream(REQUIRES, "--regional-backend=aot_eager").assert_outcomes(failed=1, xfailed=1)


def test_an_unknown_capability_is_a_usage_error(downstream):
    result = downstream(
        """
        @pytest.mark.regional_compile(requires=("region",))
        def test_it(regional):
            pass
        """,
        "--regional-backend=aot_eager",
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_it.py::test_it: unknown capability 'region'. Did you mean 'regions'*"])
