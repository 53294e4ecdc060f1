"""Runs of a GitHub or GitLab job: what their pages show is switched on, and off in a run that a test starts."""

from __future__ import annotations

import json
import os
import re

import pytest

from pytest_regional.report.facts import WORKSPACES, within_repository
from tests.warm_process import run_module

from .test_rerun import RUN

SOURCE = """
    @pytest.mark.regional_compile(expects_regions=False)
    def test_wrong(regional):
        def changes(x, w):
            return block(x, w) + torch.compiler.is_compiling()

        regional.assert_parity(changes, *pair(regional))

    @pytest.mark.regional_compile(expects_regions=False)
    def test_helper(regional):
        import program
        program.pair(None)

    @pytest.mark.regional_compile(backend="inductor")
    def test_vacuous(regional):
        pass
"""


@pytest.fixture
def in_a_job(repository, pytester):
    """Return a function that runs pytest as a job of GitHub and GitLab would, in a part of a repository."""

    def run(*options, **environment):
        repository(SOURCE)
        job = {"GITHUB_ACTIONS": "true", "GITLAB_CI": "true", "GITHUB_WORKSPACE": str(pytester.path.parent)}
        job |= {"GITHUB_STEP_SUMMARY": str(pytester.path / "summary.md")}
        outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        done = run_module("pytest", [*RUN, *options], pytester.path, {**outer, **job, **environment})
        return done.stdout.splitlines()

    return run


def errors(lines):
    return [line for line in lines if line.startswith("::")]


def place(pytester, line):
    """Return what an annotation is called, and the source line that it stands at."""
    file, number, title = re.match(r"::error file=([^,]*),line=(\d+),title=([^,]*?)::", line).groups()
    text = (pytester.path.parent / file).read_text().splitlines()[int(number) - 1]
    return title.partition("%3A%3A")[2].partition(" ")[0], text.strip()


def test_a_job_shows_annotations_a_summary_and_code_quality(in_a_job, pytester):
    """Parity fails inside the harness, other code where it stands: both are shown at the line of the test.

    What fails after the test is shown at its definition.
    """
    lines = in_a_job()
    assert [place(pytester, line) for line in errors(lines)] == [
        ("test_helper", "program.pair(None)"),
        ("test_vacuous", '@pytest.mark.regional_compile(backend="inductor")'),
        ("test_wrong", "regional.assert_parity(changes, *pair(regional))"),
    ]
    summary = (pytester.path / "summary.md").read_text(encoding="utf-8")
    assert "3 of 3 tests failed" in summary
    issues = json.loads((pytester.path / "gl-code-quality-report.json").read_text(encoding="utf-8"))
    assert {issue["location"]["path"] for issue in issues} == {f"{pytester.path.name}/test_it.py"}


@pytest.mark.slow("starts processes that import torch", fast="tests/report/test_outputs.py::test_what_is_written")
@pytest.mark.parametrize(
    ("options", "environment"),
    [
        (("--regional-report=none",), {}),
        ((), {"PYTEST_CURRENT_TEST": "test_outer.py::test_that_runs_pytest (call)"}),
        ((), {"GITHUB_ACTIONS": "", "GITLAB_CI": ""}),
    ],
    ids=["none", "inside of a test", "no job"],
)
def test_it_can_be_off(in_a_job, pytester, options, environment):
    assert errors(in_a_job(*options, **environment)) == []
    assert not (pytester.path / "summary.md").exists()
    assert not (pytester.path / "gl-code-quality-report.json").exists()


def test_it_can_be_asked_for(in_a_job, pytester):
    lines = in_a_job("--regional-report=github,gitlab", GITHUB_ACTIONS="", GITLAB_CI="", GITHUB_STEP_SUMMARY="")
    assert len(errors(lines)) == 3
    assert (pytester.path / "gl-code-quality-report.json").exists()
    assert not (pytester.path / "summary.md").exists()


@pytest.mark.parametrize("variable", WORKSPACES)
def test_paths_begin_at_the_root_of_the_repository(tmp_path, monkeypatch, variable):
    """That of a job counts where there is no other one."""
    monkeypatch.setenv(variable, str(tmp_path))
    (tmp_path / "checkout" / ".git").mkdir(parents=True)
    for folder, path in (("checkout/tests", "tests/test_it.py"), ("other/tests", "other/tests/test_it.py")):
        assert within_repository(tmp_path / folder / "test_it.py", tmp_path / folder) == path
    assert within_repository(tmp_path / "test_it.py", tmp_path / "checkout") == ""
    monkeypatch.delenv(variable)
    assert within_repository(tmp_path / "alone" / "test_it.py", tmp_path / "alone") == "test_it.py"


@pytest.mark.slow("starts processes that import torch", fast="test_paths_begin_at_the_root_of_the_repository")
def test_the_root_of_the_repository_counts_and_not_that_of_the_job(in_a_job, pytester):
    (pytester.path / ".git").mkdir()
    assert all(line.startswith("::error file=test_it.py,line=") for line in errors(in_a_job()))


def test_a_summary_that_cannot_be_written_fails_the_run_and_says_why(in_a_job, pytester):
    lines = in_a_job(GITHUB_STEP_SUMMARY=str(pytester.path / "nowhere" / "summary.md"))
    assert any(re.fullmatch(r"--regional-report: .*/summary.md could not be written: No such file.*", x) for x in lines)


@pytest.mark.slow(
    "fuzzes in a process",
    fast="tests/fuzz/test_fuzz_tests.py::test_a_finding_is_kept_and_reported_and_known_from_then_on",
)
def test_findings_are_known_by_their_oracle(repository, pytester):
    from .conftest import in_a_process
    from .test_option_fuzz import BREAKS

    repository(BREAKS)
    options = (
        "--regional-backend=test_it:faulty",
        "--regional-device=cpu",
        "--regional-blame=off",
        "--regional-fuzz=4",
    )
    in_a_process(pytester, *options, "--regional-report=a.sarif,a.md")
    (run,) = json.loads((pytester.path / "a.sarif").read_text(encoding="utf-8"))["runs"]
    (rule,) = run["tool"]["driver"]["rules"]
    (found,) = run["results"]
    script = next((pytester.path / "regional-findings").glob("*.py"))
    assert rule["id"] == found["ruleId"] == "parity"
    assert "eager" in rule["fullDescription"]["text"]
    place = found["locations"][0]["physicalLocation"]
    line = (pytester.path / "test_it.py").read_text().splitlines()[place["region"]["startLine"] - 1]
    assert (place["artifactLocation"]["uri"], line.strip()[:18]) == ("test_it.py", "regional_fuzz.run(")
    assert found["relatedLocations"][0]["physicalLocation"]["artifactLocation"]["uri"].endswith(script.name)
    assert script.stem in (pytester.path / "a.md").read_text(encoding="utf-8").replace("&#95;", "_")
