"""Lines about campaigns that run, written by a thread."""

import threading
import time

from pytest_regional.fuzz.budget import Budget
from pytest_regional.fuzz.campaign import CampaignResult
from pytest_regional.report.progress import ProgressLines, ProgressNote, progress_line


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

    assert "regional-fuzz-progress" in running
    assert "regional-fuzz-progress" not in [thread.name for thread in threading.enumerate()]
