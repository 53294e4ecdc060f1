"""``python -m pytest_regional merge``."""

from __future__ import annotations

import json

import pytest

from pytest_regional.cli import main
from pytest_regional.report.document import RunReport
from pytest_regional.report.outputs import write_report
from tests.report.ci_sample import failed, finding, fuzzed
from tests.report.test_document import fact, report


@pytest.fixture
def write(tmp_path):
    def write(name, *tests):
        write_report(report(*tests), tmp_path / name)
        return str(tmp_path / name)

    return write


def test_merge(write, capsys, tmp_path):
    shards = [write("one.json", fact("a"), fact("b")), write("two.json", fact("b", "failed"), fact("c"))]
    whole = tmp_path / "all" / "whole.json"

    assert main(["merge", *shards, "-o", str(whole)]) == 0
    assert [(test["test"], test["outcome"]) for test in RunReport.read(whole).tests] == [
        ("a", "passed"),
        ("b", "failed"),
        ("c", "passed"),
    ]
    assert capsys.readouterr().out == (
        f"{whole}: 3 tests of 2 reports; 1 test is in several, and the worst ending was kept\n"
    )


def test_merge_writes_what_ci_services_read(write, capsys, tmp_path, monkeypatch):
    """A run in several jobs has one summary, one set of annotations, one list of findings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    shards = [
        write("one.json", failed("test_a")),
        write("two.json", fuzzed(finding("n")), fuzzed(finding("m"), shard=1)),
    ]

    assert main(["merge", *shards, "--output", "all.md,all.sarif,gitlab,github"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition("title=")[2].partition(" ")[0] for line in printed if line.startswith("::error")] == [
        "tests/test_block.py%3A%3Atest_a",
        "tests/test_block.py%3A%3Atest_fuzz[shard0]",
        "tests/test_block.py%3A%3Atest_fuzz[shard1]",
    ]
    assert "3 of 3 tests failed" in (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert "3 of 3 tests failed" in (tmp_path / "all.md").read_text(encoding="utf-8")
    assert len(json.loads((tmp_path / "all.sarif").read_text())["runs"][0]["results"]) == 2
    assert len(json.loads((tmp_path / "gl-code-quality-report.json").read_text())) == 5


def test_merge_asks_no_service_by_itself(write, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    assert main(["merge", write("one.json", failed("test_a")), "-o", str(tmp_path / "all.json")]) == 0
    assert "::error" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["merge", "nowhere.json", "-o", "failed/"], "reports do not hold what failed tests leave"),
        (["merge", "nowhere.json", "-o", "none"], "expected a file"),
        (["merge", "nowhere.json", "-o", "x.json"], "nowhere.json cannot be read"),
        (["merge", "nowhere.json", "-o", "x.txt"], "expected a name that ends in .json"),
    ],
)
def test_what_was_asked_wrongly(arguments, said, capsys):
    assert main(arguments) == 2
    assert said in capsys.readouterr().err
