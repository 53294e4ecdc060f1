"""What stands in the files of a run that has not ended: nothing that could be taken for its results."""

from __future__ import annotations

import json

from pytest_regional.report.outputs import ENDINGS
from pytest_regional.report.this_run import Heartbeat, UnfinishedReports, last_heartbeat


def test_files_say_that_the_run_goes_on_or_are_not_there(tmp_path):
    """An alert that is missing in what is uploaded counts as fixed, so an old or empty file must not be there."""
    paths = [tmp_path / f"a{ending}" for ending in ENDINGS]
    for path in paths:
        path.write_text("of an earlier run")
    UnfinishedReports(paths).write()
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", "a.html", "a.md"}
    assert "did not end" in json.loads((tmp_path / "a.json").read_text())["unfinished"]
    for name in ("a.html", "a.md"):
        assert "did not end, or has not yet" in (tmp_path / name).read_text(encoding="utf-8")


def test_a_process_that_is_gone_tells_what_it_ran(tmp_path):
    process = Heartbeat(tmp_path, "gw0")
    process.begin("test_a.py::test_a", {"version": 1})
    process.phase("setup")
    process.phase("call")
    last = last_heartbeat(tmp_path, "gw0")
    assert last is not None
    assert (last["test"], last["phase"], last["facts"]) == ("test_a.py::test_a", "call", {"version": 1})
    process.end()
    assert last_heartbeat(tmp_path, "gw0") is None
