"""What a repository's ``pyproject.toml`` says of its backends."""

from __future__ import annotations

import pytest

MINE = """
from pytest_regional import BackendSpec

specification = BackendSpec("mine", factory=lambda: "aot_eager")
"""
TESTS = """
@pytest.mark.regional_compile(requires=("rng",), expects_regions=False)
def test_rng(regional):
    regional.run(torch.sin, regional.randn(2))

@pytest.mark.regional_compile(expects_regions=False)
def test_wrong(regional):
    assert False, "as known"
"""


@pytest.fixture
def run(downstream, pytester):
    pytester.makepyfile(mine=MINE)

    def run(section, *arguments, source=TESTS):
        pytester.makepyprojecttoml("[tool.pytest.ini_options]\n" + section)
        return downstream(source, "--regional-backend=mine:specification", *arguments)

    return run


def test_what_is_disclaimed_is_skipped_and_what_is_known_is_expected(run):
    result = run(
        """
        [tool.pytest-regional.backends.mine]
        disclaims = { rng = "no seeds are kept yet" }
        known-failures = [{ test = "test_it.py::test_wrong*", reason = "a sign", link = "https://example.org/1" }]
        """
    )
    result.assert_outcomes(skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(
        ["SKIPPED*backend 'mine' disclaims rng: no seeds are kept yet", "XFAIL*a sign (https:*"]
    )


def test_without_the_section_nothing_is_disclaimed(run):
    run("").assert_outcomes(passed=1, failed=1)


def test_the_audit_runs_what_is_disclaimed(run):
    result = run(
        """
        [tool.pytest-regional.backends.mine]
        disclaims = { rng = "no seeds are kept yet" }
        """,
        "--regional-audit",
        "-k",
        "rng",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no seeds are kept yet; it works, so claim the capability*"])


def test_a_known_failure_that_passes_fails(run):
    result = run(
        """
        [tool.pytest-regional.backends.mine]
        known-failures = [{ test = "test_it.py::test_rng*", reason = "a sign", link = "https://example.org/1" }]
        """,
        "-k",
        "rng",
    )
    result.assert_outcomes(failed=1)


def test_one_that_matches_no_test_is_told(run):
    result = run(
        """
        [tool.pytest-regional.backends.mine]
        known-failures = [{ test = "test_it.py::test_gone", reason = "a sign", link = "https://example.org/1" }]
        """
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*pyproject.toml: mine, known failure 1: 'test_it.py::test_gone' matches no test*"])


def test_what_others_lack_is_not_ours(run):
    run(
        """
        [tool.pytest-regional.backends.another]
        disclaims = { rng = "no seeds are kept yet" }
        """
    ).assert_outcomes(passed=1, failed=1)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("[tool.pytest-regional]\nbackends = 1", "*backends]: expected a table for each backend*"),
        (
            "[tool.pytest-regional]\nbackend = 1",
            "*[[]tool.pytest-regional]: unknown key 'backend'. Did you mean 'backends'*",
        ),
        (
            "[tool.pytest-regional.backends]\nmine = 1",
            "*backends.mine]: expected a table with disclaims and known-failures*",
        ),
        ("[tool.pytest-regional.backends.mine]\ndisclaim = {}", "*unknown key 'disclaim'. Did you mean 'disclaims'*"),
        ("[tool.pytest-regional.backends.mine]\ndisclaims = ['rng']", "*disclaims: expected a table of capabilities*"),
        (
            "[tool.pytest-regional.backends.mine]\ndisclaims = { rgn = 'no' }",
            "*disclaims: unknown capability 'rgn'. Did you mean 'rng'*",
        ),
        (
            "[tool.pytest-regional.backends.mine]\nknown-failures = 'a.txt'",
            "*known-failures: expected a list of tables*",
        ),
        (
            "[tool.pytest-regional.backends.mine]\nknown-failures = [{ test = 'a' }]",
            "*number 1: expected test, reason, link, all three*",
        ),
        (
            "[tool.pytest-regional.backends.mine]\nknown-failures = [{ test = 'capability:rgn', reason = 'a', link = 'b' }]",
            "*unknown capability 'rgn'*",
        ),
    ],
)
def test_what_is_written_wrong_is_a_usage_error(run, section, said):
    result = run(section)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])
