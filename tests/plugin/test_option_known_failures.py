"""``--regional-known-failures``: the adopter's file."""

from __future__ import annotations

import pytest

TESTS = """
    @pytest.mark.regional_compile
    def test_fails(regional):
        assert regional.backend != "aot_eager"

    @pytest.mark.regional_compile(requires=("rng",))
    def test_capability(regional):
        assert regional.backend != "aot_eager"

    @pytest.mark.regional_compile
    def test_passes(regional):
        pass
"""


def run(downstream, pytester, lines, *arguments):
    pytester.makefile(".txt", failures=lines)
    return downstream(TESTS, "--regional-backend=aot_eager", "--regional-known-failures=failures.txt", *arguments)


GOOD = """
# what we know of
aot_eager | test_it.py::test_fails | it loses a bit | https://example.org/1
aot_eager | capability:rng | draws differ | https://example.org/2
torch | test_it.py::test_nothing | another backend's line | https://example.org/3
"""


def test_lines_become_strict_expected_failures(downstream, pytester):
    result = run(downstream, pytester, GOOD)
    result.assert_outcomes(xfailed=2, passed=1)
    result.stdout.fnmatch_lines(["*it loses a bit (https://example.org/1)*"])


def test_a_line_that_speaks_of_a_passing_test_fails_it(downstream, pytester):
    result = run(downstream, pytester, GOOD.replace("test_fails", "test_passes"))
    result.assert_outcomes(xfailed=1, failed=2)
    result.stdout.fnmatch_lines(["*XPASS(strict)*"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("aot_eager | test_it.py::test_gone | r | l", "*failures.txt:1: 'test_it.py::test_gone' matches no test*"),
        ("aot_eager | test_it.py::test_fails | r", "*failures.txt:1: expected 'backend | test or capability:NAME*"),
        ("aot_eager | test_it.py::test_fails | | l", "*failures.txt:1: expected*all four*"),
        ("aot_eager | capability:rgn | r | l", "*failures.txt:1: unknown capability 'rgn'. Did you mean 'rng'*"),
    ],
)
def test_a_wrong_line_is_a_usage_error(downstream, pytester, line, message):
    result = run(downstream, pytester, line)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_a_line_about_tests_that_were_not_collected_is_no_error(downstream, pytester):
    pytester.makepyfile(test_alone="def test_alone(): pass")
    pytester.makefile(".txt", failures="aot_eager | test_other.py::test_gone | r | l")
    downstream(
        TESTS, "--regional-backend=aot_eager", "--regional-known-failures=failures.txt", "-k", "passes"
    ).assert_outcomes(passed=1, deselected=3)


def test_a_missing_file_is_a_usage_error(downstream):
    result = downstream(TESTS, "--regional-backend=aot_eager", "--regional-known-failures=nowhere.txt")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*known failures: cannot read *nowhere.txt*"])


def test_lines_name_the_backend_as_its_specification_does(downstream, pytester):
    pytester.makepyfile(
        mine="""
        from pathlib import Path
        from pytest_regional import BackendSpec, declared, unsupported
        absent = unsupported("by design")
        spec = BackendSpec("named", lambda: "aot_eager", declared(compiles_regions=absent)(), Path("own.txt").absolute())
        """
    )
    pytester.makefile(".txt", own="named | test_it.py::test_it | known to us | https://example.org/4")
    result = downstream(
        """
        @pytest.mark.regional_compile
        def test_it(regional):
            assert False
        """,
        "--regional-backend=mine:spec",
    )
    result.assert_outcomes(xfailed=1)
