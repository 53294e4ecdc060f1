"""What a report gathers, and what it says where something does not end."""

from __future__ import annotations

import subprocess

import pytest

from pytest_regional.bug_report import gathering
from pytest_regional.bug_report.gathering import as_markdown, gather
from pytest_regional.bug_report.running import ScriptRun
from pytest_regional.bug_report.scripts import of_script


class Runner:
    """Runs nothing: a script is wrong, and does not end in eager, or where it is measured."""

    def __init__(self, hangs_in_eager):
        self.hangs_in_eager, self.measured = hangs_in_eager, 0

    def run_until_one_shows(self, scripts, raises):
        return [ScriptRun("wrong")]

    def run_each(self, script, changes):
        if self.hangs_in_eager:
            return [ScriptRun("too slow", "it took longer than 5 s")] + [ScriptRun("not checked")] * (len(changes) - 1)
        return [ScriptRun("right")] * len(changes)

    def run(self, script, changes=None, *, trace=None):
        self.measured += 1
        return ScriptRun("too slow", "it took longer than 5 s")


@pytest.fixture
def _without_environment(monkeypatch):
    monkeypatch.setattr(gathering, "_environment", lambda: "PyTorch version: 2.13.0")


@pytest.mark.usefixtures("_without_environment")
@pytest.mark.parametrize("hangs_in_eager", [True, False], ids=["a run hangs", "the measurement hangs"])
def test_a_script_that_hangs_is_run_no_more(hangs_in_eager, tmp_path):
    runner = Runner(hangs_in_eager)

    report = gather(of_script("a.py", ""), runner, trace=tmp_path)

    assert runner.measured == (not hangs_in_eager)
    assert report.culprit == "Not searched to the end: a run of the script took too long (it took longer than 5 s)."
    assert report.culprit in as_markdown(report)


def test_collect_env_that_hangs_costs_no_report(monkeypatch):
    def run_interpreter(module, arguments, environment, timeout):
        raise subprocess.TimeoutExpired([module], timeout)

    monkeypatch.setattr(gathering, "run_interpreter", run_interpreter)

    report = gather(of_script("a.py", ""), Runner(False))

    assert "python -m torch.utils.collect_env took longer than 120 s: run it" in report.environment
