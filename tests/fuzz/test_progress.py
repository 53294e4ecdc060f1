"""Lines about campaigns that run and tests that take long, written by a thread."""

import threading
import time

from pytest_regional.fuzz.budget import Budget
from pytest_regional.fuzz.campaign import CampaignResult
from pytest_regional.report.progress import (
    Heartbeat,
    ProgressFile,
    ProgressLines,
    last_heartbeat,
    progress_line,
    slow_line,
)


def noted(folder, name, examples):
    note = ProgressFile(folder / f"progress-{name}.json", name)
    note(CampaignResult(seed=1, examples=examples), Budget(examples=100).start())
    return note


def test_one_line_tells_of_all_that_run(tmp_path):
    first, second = noted(tmp_path, "test_a", 3), noted(tmp_path, "test_b", 5)
    both = progress_line(tmp_path)
    first.close()
    one = progress_line(tmp_path)
    second.close()

    assert both.startswith("regional fuzzing: test_a 3 of 100 programs in ")
    assert "0 new findings; test_b 5 of 100 programs in " in both
    assert one.startswith("regional fuzzing: test_b ")
    assert progress_line(tmp_path) == ""


def test_a_line_is_written_while_campaigns_run_and_none_twice(tmp_path, capfd):
    with ProgressLines(tmp_path, every=0.01):
        note = noted(tmp_path, "test_a", 3)
        time.sleep(0.2)
        note.close()

    assert capfd.readouterr().out.count("regional fuzzing: test_a 3 of 100 programs") == 1


def test_the_thread_ends_with_the_run(tmp_path):
    with ProgressLines(tmp_path, every=3600):
        running = [thread.name for thread in threading.enumerate()]

    assert "regional-progress" in running
    assert "regional-progress" not in [thread.name for thread in threading.enumerate()]


def test_a_test_that_takes_long_is_named(tmp_path):
    first, second = Heartbeat(tmp_path / "files", "gw0"), Heartbeat(tmp_path / "files", "gw1")
    for process, test in ((first, "test_a.py::test_slow[torch]"), (second, "test_b.py::test_other")):
        process.begin(test, {})
        process.phase("setup")
    time.sleep(0.05)
    assert slow_line(tmp_path / "files", longer_than=3600) == ""
    assert slow_line(tmp_path / "files", longer_than=-1) == (
        "regional: still running test_a.py::test_slow[torch] for 0 s; test_b.py::test_other for 0 s"
    )
    second.end()
    assert "test_b" not in slow_line(tmp_path / "files", longer_than=-1)
    first.end()
    assert slow_line(tmp_path / "files", longer_than=-1) == ""


def test_a_process_that_is_gone_tells_what_it_ran(tmp_path):
    process = Heartbeat(tmp_path, "gw0")
    process.begin("test_a.py::test_a", {"version": 1})
    process.phase("setup")
    process.phase("call")
    last = last_heartbeat(tmp_path, "gw0")
    assert last is not None
    assert (last["test"], last["phase"], last["facts"]) == ("test_a.py::test_a", "call", {"version": 1})
    assert slow_line(tmp_path, longer_than=-1) == ""
    process.end()
    assert last_heartbeat(tmp_path, "gw0") is None


def test_a_campaign_is_reported_once(tmp_path):
    process = Heartbeat(tmp_path, "gw0")
    process.begin("test_a.py::test_a", {})
    process.phase("call")
    note = noted(tmp_path, "test_a", 3)
    assert slow_line(tmp_path, longer_than=-1) == ""
    note.close()
    assert slow_line(tmp_path, longer_than=-1) != ""
