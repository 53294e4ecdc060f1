"""``python -m pytest_regional compare`` and ``merge``."""

from __future__ import annotations

import pytest

from pytest_regional.command_line import main
from pytest_regional.report.document import RunReport
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "nowhere.json", "nowhere.json"], "nowhere.json cannot be read"),
        (["merge", "nowhere.json", "-o", "x.json"], "nowhere.json cannot be read"),
        (["merge", "nowhere.json", "-o", "x.txt"], "expected a name that ends in .json"),
        (["compare", "a.json", "b.json", "--slower=1"], "expected a number above 1"),
    ],
)
def test_what_was_asked_wrongly(arguments, said, capsys):
    assert main(arguments) == 2
    assert said in capsys.readouterr().err
