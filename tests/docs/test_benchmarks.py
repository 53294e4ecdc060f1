"""The table of measurements: its rows are those of the code, its figures follow from the numbers, none is lost."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fenced import ROOT

from bench import rows, table
from bench.__main__ import Group, all_groups, main
from bench.rows.row import Claim, Row, Target

PAGE = "# Measurements\n\nabove\n\n<!-- table begins -->\nold\n<!-- table ends -->\n\nbelow\n"
HALF = Claim("half", "ours", "theirs", "s", Target("at most 1/2", most=1 / 2))
GAIN = Claim("gain", "ours", "theirs", "s", Target("at least 3 times", least=3), "theirs / ours", "{:.1f} x")
EXTRA = Claim("extra", "ours", "theirs", "ms", Target("under 10 ms more", most=10), "ours - theirs", "{:+.1f} ms")
INFORMS = dataclasses.replace(HALF, name="informs", target=None)


def broken(rounds):
    raise ZeroDivisionError("no | turns\nat all")


def groups(**more):
    return {"one": Group((HALF,), lambda rounds: [HALF.row([1.0] * rounds, [4.0] * rounds)]), **more}


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "benchmarks.md"
    path.write_text(PAGE)
    return path


def lines_of(text):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]


# What the documentation shows


def test_the_page_has_the_rows_and_targets_of_the_code():
    text = table.PAGE.read_text().partition(table.BEGINS)[2].partition(table.ENDS)[0]
    claims = [claim for group in all_groups().values() for claim in group.claims]
    shown = [(line[0], line[5]) for line in lines_of(text)[2:]]

    assert shown == [(claim.name, claim.target.text if claim.target else "") for claim in claims]
    assert len({claim.name for claim in claims}) == len(claims) > 15


def test_make_bench_runs_the_table():
    makefile = (ROOT / "Makefile").read_text()
    recipe = makefile.partition("\nbench:")[2].partition("\n\n")[0]

    assert recipe.splitlines()[1:] == ["\t$(RUN) bench"]


def test_benchmark_groups_can_be_listed_without_torch():
    program = "import sys, bench.__main__ as m; m.all_groups(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


@pytest.mark.parametrize("name", rows.NAMES)
def test_targets_are_bounds_that_something_meets_and_something_misses(name):
    for claim in rows.module(name).CLAIMS:
        if claim.target is not None:
            assert {claim.target.is_met_by(figure) for figure in (-1e9, 0, 1e9)} == {True, False}, claim


# Figures


@pytest.mark.parametrize(
    ("claim", "ours", "theirs", "figures", "met"),
    [
        (HALF, [1, 2, 9], [4, 4, 9], (0.25, 0.5, 1.0), True),
        (HALF, [1, 3, 9], [4, 4, 9], (0.25, 0.75, 1.0), False),
        (GAIN, [1, 2, 2], [4, 4, 6], (4, 2, 3), True),
        (GAIN, [1, 2, 2], [4, 4, 5], (4, 2, 2.5), False),
        (EXTRA, [20, 30], [15, 15], (5, 15), True),
        (EXTRA, [20, 30], [15, 14], (5, 16), False),
        (INFORMS, [8], [4], (2,), None),
        (HALF, [1, 3, 4], [4], (0.25, 0.75, 1.0), False),  # theirs takes minutes: once
        (HALF, [1, 3, 4], [4, 8], (0.25, 0.375, 0.5), True),
    ],
)
def test_figures_of_each_turn_their_median_and_the_verdict(claim, ours, theirs, figures, met):
    row = claim.row(ours, theirs)

    assert row.figures == pytest.approx(figures)
    assert row.met is met


def test_a_line_shows_medians_spread_target_and_verdict():
    line = table.cells(GAIN.row([1.0, 2.0, 2.0], [4.0, 4.0, 6.0], "a note"))

    assert line[:4] == ("gain", "ours: 2 s", "theirs: 4 s", "3.0 x (2.0 x to 4.0 x); a note")
    assert line[4:] == ("3", "at least 3 times", "met")
    assert table.cells(GAIN.row([1.0], [2.0]))[-1] == "missed"
    assert table.cells(INFORMS.row([1.0], [2.0]))[-2:] == ("", "")


def test_a_figure_exactly_on_the_bound_meets_it():
    assert HALF.row([2], [4]).met
    assert GAIN.row([1], [3]).met


# Running


def test_an_unknown_row_is_refused_with_the_names_there_are(page, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--rows", "one,startpu"], groups(other=Group((GAIN,), broken)), page)

    assert stopped.value.code == 2
    assert "no row is named startpu; there are one, other" in capsys.readouterr().err
    assert page.read_text() == PAGE


def test_a_row_that_raises_leaves_the_others_and_fails_the_run(page, capsys):
    status = main([], {"bad": Group((GAIN, EXTRA), broken), **groups()}, page)

    printed = capsys.readouterr()
    lines = lines_of(printed.out)[2:]
    assert status == 1
    assert [line[0] for line in lines] == ["gain", "extra", "half"]
    assert lines[0][3:] == ["failed: ZeroDivisionError: no / turns at all", "", "at least 3 times", "failed"]
    assert lines[2][3:] == ["0.25 (0.25 to 0.25)", "5", "at most 1/2", "met"]
    assert "bad ..." in printed.err
    assert "benchmarks.md is as it was: a row failed" in printed.err
    assert page.read_text() == PAGE


def test_a_group_next_to_another_keeps_its_place_and_runs_alone_without_it(page):
    second = {"two": Group((GAIN,), lambda rounds: [GAIN.row([1.0], [4.0])], beside="last")}
    last = {"last": Group((EXTRA,), lambda rounds: [EXTRA.row([1.0], [1.0])])}

    assert main([], {**second, **groups(), **last}, page) == 0
    assert [line[0] for line in lines_of(page.read_text())[2:]] == ["gain", "half", "extra"]
    assert main(["--rows", "two"], {**second, **last}, page) == 0


def test_a_missed_target_is_no_failure(page):
    assert main([], {"slow": Group((HALF,), lambda rounds: [HALF.row([1.0], [1.0])])}, page) == 0
    assert "missed" in page.read_text()


def test_rounds_are_passed_on_and_numbers_kept(page, tmp_path, capsys):
    main(["--rounds", "3", "--json", str(tmp_path / "numbers.json")], groups(), page)  # too few for the page

    (kept,) = json.loads((tmp_path / "numbers.json").read_text())
    assert kept["values"] == {"ours": [1.0] * 3, "theirs": [4.0] * 3, "figures": [0.25] * 3}
    assert (kept["name"], kept["target"], kept["met"]) == ("half", "at most 1/2", True)
    assert ", 3 rounds." in capsys.readouterr().out
    assert page.read_text() == PAGE


@pytest.mark.parametrize("arguments", [["--no-write"], ["--rows", "one"], ["--rounds", "4"]])
def test_the_page_is_written_only_when_all_rows_were_measured_and_it_is_wanted(arguments, page):
    main(arguments, groups(other=Group((GAIN,), lambda rounds: [GAIN.row([1.0], [2.0])])), page)

    assert page.read_text() == PAGE


INTERRUPTED = """
import functools, signal, sys
from pathlib import Path
from bench import __main__ as bench
from bench import child

def asleep(rounds):
    child.run([sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '600'])"], {})

claim = bench.rows.module("memory").CLAIMS
if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so do theirs
    groups = {name: bench.Group(claim, asleep, beside) for name, beside in (("a", ""), ("b", "a"), ("c", "a"))}
    bench.main(["--no-write"], groups)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_an_interrupted_run_leaves_no_process_behind(name, tmp_path):
    """Two groups are measured at once: the one that the main thread waits for, and the one on the second core."""
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    process = subprocess.Popen([sys.executable, script], env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=2)
    try:
        wait_until(lambda: len(descendants(process.pid)) == 4)
        below = descendants(process.pid)
        process.send_signal(getattr(signal, name))
        assert process.wait(20) != 0
    finally:
        process.kill()
    wait_until(lambda: not any(Path("/proc", str(pid)).exists() for pid in below))


def descendants(pid):
    """The processes below ``pid``, from Linux's own files."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    return {child for child in parents if pid in lineage(child, parents)}


def lineage(pid, parents):
    while pid := parents.get(pid):
        yield pid


def wait_until(condition):
    limit = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.05)


# Writing


def test_writing_replaces_only_what_is_between_the_marks():
    before, after = PAGE.split("old")

    assert table.written_between(PAGE, "new\n") == f"{before}new{after}"
    assert table.written_between(table.written_between(PAGE, "a\nb"), "old") == PAGE


@pytest.mark.parametrize("text", ["", PAGE.replace(table.ENDS, ""), PAGE + table.BEGINS, table.ENDS + table.BEGINS])
def test_a_page_without_its_marks_is_left_alone(text):
    with pytest.raises(ValueError, match="the page needs one"):
        table.written_between(text, "new")


def test_an_error_keeps_to_its_cell():
    assert len(lines_of(table.markdown([Row(HALF, error="a|b\n" * 500)]))[2]) == len(table.COLUMNS)


def test_a_program_that_fails_in_one_way_counts_in_none():
    from bench.fuzz_modes import without_failures

    spent = {"naive loop": [1.0, 2.0, 3.0], "full": [4.0, math.nan, 5.0]}

    assert without_failures(spent) == {"naive loop": [1.0, 3.0], "full": [4.0, 5.0]}
    with pytest.raises(ValueError, match="every program failed"):
        without_failures({"naive loop": [1.0, math.nan], "full": [math.nan, 2.0]})
