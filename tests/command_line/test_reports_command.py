"""``python -m pytest_regional compare`` and ``merge``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_regional.command_line import main
from pytest_regional.report import history
from pytest_regional.report.document import RunReport
from tests.report.ci_sample import failed, finding, fuzzed
from tests.report.test_document import fact, report


@pytest.fixture
def write(tmp_path):
    def write(name, *tests):
        report(*tests).write(tmp_path / name)
        return str(tmp_path / name)

    return write


def test_compare(write, capsys):
    old, new = write("old.json", fact("a"), fact("b", "failed")), write("new.json", fact("a", "failed"), fact("b"))

    assert main(["compare", old, new]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "new failures (1 test):",
        "  a on reference (cpu): failed, passed before",
        "fixed (1 test):",
        "  b on reference (cpu): passed, failed before",
    ]
    assert main(["compare", new, new]) == 0
    assert capsys.readouterr().out == "no difference in 2 tests\n"


def test_compare_tells_what_is_slower_than_asked(write, capsys):
    old, new = write("old.json", fact("a", seconds=1.0)), write("new.json", fact("a", seconds=1.8))

    assert main(["compare", old, new, "--slower=2"]) == 0
    assert "no difference" in capsys.readouterr().out
    assert main(["compare", old, new]) == 0
    assert "1.80 s, 1.00 s before" in capsys.readouterr().out


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
        (["compare", "nowhere.json", "nowhere.json"], "nowhere.json cannot be read"),
        (["merge", "nowhere.json", "-o", "x.json"], "nowhere.json cannot be read"),
        (["merge", "nowhere.json", "-o", "x.txt"], "expected a name that ends in .json"),
        (["compare", "a.json", "b.json", "--slower=1"], "expected a number above 1"),
    ],
)
def test_what_was_asked_wrongly(arguments, said, capsys):
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def timed_report(tmp_path, name, *, passes=0.1, tests=12, machine=2):
    """Write a report whose tests take ``passes`` seconds in passes, and another second in all."""
    region = {"region mlp of the forward graph": {"passes": passes, "compiler": 1.0}}
    times = {"phases": {"passes": passes, "compiler": 1.0}, "regions": region, "not_measured": []}
    facts = [{**fact(f"t{number}"), "compile_times": times} for number in range(tests)]
    replace(report(*facts), machine={"cores": machine}).write(tmp_path / name)
    return str(tmp_path / name)


def test_compare_fails_where_a_phase_is_slower_than_its_limit(tmp_path, capsys):
    old, new = timed_report(tmp_path, "old.json"), timed_report(tmp_path, "new.json", passes=0.2)
    assert main(["compare", old, new, "--fail-slower=passes:20%"]) == 1
    out = capsys.readouterr().out
    assert "compile times, compared with 1 run before:" in out
    assert "  12 tests: passes 2.00 (2.00 to 2.00), 2.400 s, 1.200 s before" in out
    assert "slower than --fail-slower=passes:20% allows:" in out
    assert "  region mlp of the forward graph: passes 2.00" in out
    # All together are 9 % slower.
    assert main(["compare", old, new, "--fail-slower=20%"]) == 0
    assert main(["compare", old, new, "--fail-slower=20%", "--fail-slower=total:5%"]) == 1
    assert main(["compare", new, old, "--fail-slower=passes:20%"]) == 0


def test_compare_takes_either_clock(tmp_path, capsys):
    old, new = (tmp_path / name for name in ("old.json", "new.json"))
    for path, cpu in ((old, 0.1), (new, 0.3)):
        timed = RunReport.read(Path(timed_report(tmp_path, path.name)))
        for one in timed.tests:
            both = {"phases": {"passes": cpu}, "regions": {}}
            one["compile_times"]["cpu"] = both
        timed.write(path)
    arguments = ["compare", str(old), str(new), "--fail-slower=passes:20%"]
    assert main(arguments) == 0
    assert main([*arguments, "--clock=wall"]) == 0
    assert main([*arguments, "--clock=cpu"]) == 1
    assert "compile times on the CPU clock, compared with 1 run before:" in capsys.readouterr().out
    before = timed_report(tmp_path, "before.json")
    assert main(["compare", before, str(new), "--fail-slower=20%", "--clock=cpu"]) == 2
    assert "1 run has no times on the CPU clock and is not compared" in capsys.readouterr().err


def test_compare_reads_a_history(tmp_path, capsys):
    path = tmp_path / "times.jsonl"
    for seconds in (0.1, 0.11, 0.09, 0.1, 0.1):
        history.append(RunReport.read(Path(timed_report(tmp_path, "one.json", passes=seconds, tests=1))), path)
    new = timed_report(tmp_path, "new.json", passes=0.3, tests=1)
    assert main(["compare", str(path), new, "--fail-slower=passes:20%"]) == 1
    assert "compared with 5 runs before" in capsys.readouterr().out
    # The last line of a history is a run like any other.
    assert main(["compare", str(path), "--fail-slower=passes:20%"]) == 0
    assert "compared with 4 runs before" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "limit", "said"),
    [
        (["old.json", "new.json"], "fast", "--fail-slower='fast': expected a percentage"),
        (["old.json", "new.json"], "pases:1%", "Did you mean 'passes'"),
        (["old.json"], "20%", "one run, and there is none to compare it with"),
        (["old.json", "other.json"], "20%", "compile times of 1 run on another machine are not compared"),
        (["plain.json", "plain.json"], "20%", "no run has them"),
        (["few.json", "few.json"], "20%", "not known without 4 earlier runs, or 8 tests"),
        (["old.json", "none.jsonl"], "20%", "cannot be read"),
    ],
)
def test_compare_refuses_what_gives_no_answer_on_times(tmp_path, capsys, write, names, limit, said):
    for name in ("old.json", "new.json"):
        timed_report(tmp_path, name)
    timed_report(tmp_path, "other.json", machine=64)
    timed_report(tmp_path, "few.json", tests=2)
    write("plain.json", fact("a"))
    assert main(["compare", *(str(tmp_path / name) for name in names), f"--fail-slower={limit}"]) == 2
    assert said in capsys.readouterr().err


def test_merged_reports_keep_compile_times(tmp_path):
    shard = timed_report(tmp_path, "one.json", tests=1)
    assert main(["merge", shard, "-o", str(tmp_path / "all.json") + "," + str(tmp_path / "all.jsonl")]) == 0
    assert len(history.read(tmp_path / "all.jsonl")) == 1
    assert RunReport.read(tmp_path / "all.json").tests[0]["compile_times"]["phases"]["passes"] == 0.1
