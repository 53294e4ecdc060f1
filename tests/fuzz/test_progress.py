"""Lines about campaigns that run and tests that take long, written by a thread."""

import threading
import time

from pytest_regional.fuzz.budget import Budget
from pytest_regional.fuzz.campaign import CampaignResult
from pytest_regional.report.progress import ProgressLines, ProgressNote, RunningNote, progress_line, slow_line


def noted(folder, name, examples):
    note = ProgressNote(folder / f"progress-{name}.json", name)
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
    first, second = RunningNote(tmp_path / "notes", "gw0"), RunningNote(tmp_path / "notes", "gw1")
    with first.about("test_a.py::test_slow[torch]"), second.about("test_b.py::test_other"):
        time.sleep(0.05)
        assert slow_line(tmp_path / "notes", longer_than=3600) == ""
        assert slow_line(tmp_path / "notes", longer_than=-1) == (
            "regional: still running test_a.py::test_slow[torch] for 0 s; test_b.py::test_other for 0 s"
        )
        second.forget()
        assert "test_b" not in slow_line(tmp_path / "notes", longer_than=-1)
    assert slow_line(tmp_path / "notes", longer_than=-1) == ""


def test_a_campaign_is_not_told_of_twice(tmp_path):
    with RunningNote(tmp_path, "gw0").about("test_a.py::test_a"):
        note = noted(tmp_path, "test_a", 3)
        assert slow_line(tmp_path, longer_than=-1) == ""
        note.close()
        assert slow_line(tmp_path, longer_than=-1) != ""
