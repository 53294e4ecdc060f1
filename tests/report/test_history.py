"""A file with the compile times of earlier runs: appended to line by line, also by several processes, and read."""

from __future__ import annotations

import json
import multiprocessing

import pytest

from pytest_regional._files import append_line
from pytest_regional.report import history
from pytest_regional.report.reading import ReportError

from .test_document import fact, report


def timed(test, outcome="passed", **phases):
    times = {"phases": phases, "regions": {"region mlp of the forward graph": phases}, "not_measured": []}
    return {**fact(test, outcome), "compile_times": times}


def test_what_is_appended_is_read(tmp_path):
    path = tmp_path / "new" / "times.jsonl"
    history.append(report(timed("a", passes=0.5), timed("b", "failed", passes=9.0), fact("c")), path)
    history.append(report(timed("a", passes=0.7), torch="2.15.0"), path)
    first, second = history.read(path)
    assert first.tests["a", "reference", "cpu"]["phases"] == {"passes": 0.5}
    assert list(first.tests) == [("a", "reference", "cpu")]
    assert second.versions == {"torch": "2.15.0"}
    assert second == history.TimedRun.of(report(timed("a", passes=0.7), torch="2.15.0"))


def test_cpu_times_are_read_where_there_are_some(tmp_path):
    path = tmp_path / "times.jsonl"
    new = timed("a", passes=0.5)
    new["compile_times"]["cpu"] = {"phases": {"passes": 0.2}, "regions": {"region mlp": {"passes": 0.2}}}
    history.append(report(timed("a", passes=0.5)), path)
    history.append(report(new), path)
    old, new_run = (run.on("cpu").tests for run in history.read(path))
    assert old == {}
    assert new_run["a", "reference", "cpu"]["phases"] == {"passes": 0.2}
    new["compile_times"]["cpu"] = {"phases": {}}
    history.append(report(new), path)
    with pytest.raises(ReportError, match=r"line 3 .*tests\[0\].compile_times.cpu lacks regions"):
        history.read(path)


def test_a_run_that_did_not_finish_or_measured_nothing_leaves_no_line(tmp_path):
    path = tmp_path / "times.jsonl"
    history.append(report(timed("a", passes=0.5), unfinished="interrupted"), path)
    history.append(report(fact("a")), path)
    assert not path.exists()


def _append_many(path):
    for _ in range(40):
        append_line(path, b"x" * 50_000)


def test_processes_that_append_at_once_keep_their_lines_whole(tmp_path):
    path = tmp_path / "lines"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_append_many, args=(path,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert path.read_bytes().split(b"\n") == [b"x" * 50_000] * 160 + [b""]


def test_a_line_that_a_killed_run_left_is_named_and_breaks_no_other(tmp_path):
    path = tmp_path / "times.jsonl"
    path.write_text('{"version": 1, "cre', encoding="utf-8")
    history.append(report(timed("a", passes=0.5)), path)
    with pytest.raises(ReportError, match="line 1 is not JSON: delete it"):
        history.read(path)
    path.write_bytes(path.read_bytes().split(b"\n", 1)[1])
    assert len(history.read(path)) == 1


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"version": 2}, "line 1 is of a format that this version does not know"),
        ({"machine": 3}, "line 1 is no run of a history: machine is 3, expected a table"),
        ({"tests": [{"test": "a"}]}, r"tests\[0\] lacks backend, compile_times, device"),
    ],
)
def test_a_line_of_another_shape_is_an_error(tmp_path, changed, said):
    path = tmp_path / "times.jsonl"
    history.append(report(timed("a", passes=0.5)), path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    with pytest.raises(ReportError, match=said):
        history.read(path)


def test_negative_seconds_are_no_times(tmp_path):
    path = tmp_path / "times.jsonl"
    history.append(report(timed("a", passes=-0.5)), path)
    with pytest.raises(ReportError, match="expected seconds, 0 or more"):
        history.read(path)
