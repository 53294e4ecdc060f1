"""Where a terminal would be silent for seconds, a line says what the run does itself."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_regional._waiting import longer_than, waiting_for
from pytest_regional.report import progress
from pytest_regional.report.progress import ProgressLines, said_if_it_takes_long, says_waits

ROOT = Path(__file__).parents[2]
SAID = "regional: making tea ..."


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(progress, "SILENCE", 0.1)
    monkeypatch.setattr(progress, "LOOK", 0.01)


def test_the_innermost_wait_that_takes_long():
    assert longer_than(0) == ""
    with waiting_for("one"):
        time.sleep(0.02)
        with waiting_for("two"):
            assert longer_than(0.01) == "one"
            assert longer_than(-1) == "two"
        assert longer_than(-1) == "one"
    with pytest.raises(KeyError), waiting_for("three"):
        raise KeyError
    assert longer_than(-1) == ""


@pytest.mark.parametrize(
    ("seconds", "waits", "times"), [(0.4, True, 1), (0.0, True, 0), (0.4, False, 0)], ids=["long", "short", "unasked"]
)
def test_it_is_said_once(tmp_path, capfd, seconds, waits, times):
    with ProgressLines(tmp_path, every=3600, waits=waits):
        for _ in range(2):
            with waiting_for("making tea"):
                time.sleep(seconds)
    assert capfd.readouterr().out.count(SAID) == times


def test_other_lines_keep_their_time(tmp_path, capfd):
    (tmp_path / "progress-a.json").write_text('{"text": "test_a 3 programs"}')
    with ProgressLines(tmp_path, every=3600, waits=True):
        time.sleep(0.2)
    assert "regional fuzzing" not in capfd.readouterr().out
    with ProgressLines(tmp_path, every=0.05, waits=True):
        time.sleep(0.3)
    assert capfd.readouterr().out.count("regional fuzzing: test_a 3 programs") == 1


def config(verbosity, **more):
    return SimpleNamespace(get_verbosity=lambda: verbosity, **more)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "verbosity", "says"),
    [(Terminal, 0, True), (Terminal, 1, True), (Terminal, -1, False), (io.StringIO, 0, False), (io.StringIO, 1, True)],
)
def test_who_is_told(monkeypatch, stream, verbosity, says):
    monkeypatch.setattr(sys, "stdout", stream())
    assert says_waits(config(verbosity)) == says
    assert not says_waits(config(verbosity, workerinput={}))


@pytest.mark.parametrize(("seconds", "verbosity", "times"), [(0.3, 1, 1), (0, 1, 0), (0.3, -1, 0)])
def test_before_tests_run(capsys, seconds, verbosity, times):
    with said_if_it_takes_long(config(verbosity), "making tea"):
        time.sleep(seconds)
    time.sleep(0.2)
    assert capsys.readouterr().out.count(SAID) == times


SLOW = """
import importlib
import time
from types import SimpleNamespace
from pytest_regional import plugin
from pytest_regional._torch import inductor
from pytest_regional.report import progress

progress.SILENCE, progress.LOOK = 0.2, 0.05

def slowly(function):
    def slow(*arguments):
        time.sleep(1)
        return function(*arguments)
    return slow

inductor.import_compilers = slowly(inductor.import_compilers)
plugin.importlib = SimpleNamespace(import_module=slowly(importlib.import_module))
"""

TEST = """
import pytest, torch

@pytest.mark.regional_compile
def test_one(regional):
    regional.assert_parity(torch.sin, regional.randn(3))
"""


def on_a_terminal(folder, *options):
    """Run pytest with a terminal of its own as output; return what it shows."""
    (folder / "slow.py").write_text(SLOW)
    (folder / "test_it.py").write_text(TEST)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "pytest", "-p", "slow", "-p", "no:cacheprovider", "--regional-backend=aot_eager"]
    path = os.pathsep.join([str(folder), str(ROOT)])
    with open(ours, "rb", buffering=0) as screen:
        process = subprocess.Popen(
            [*command, *options], cwd=folder, env={**os.environ, "PYTHONPATH": path}, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        shown = b""
        while True:
            try:
                more = screen.read(4096)
            except OSError:  # Linux's end of a terminal
                break
            shown += more
            if not more:
                break
        assert process.wait(60) == 0, shown.decode()
    return shown.decode()


def test_on_a_terminal(tmp_path):
    shown = on_a_terminal(tmp_path)
    assert "regional: importing torch ..." in shown.partition("test session starts")[0]
    assert "regional: importing PyTorch's compilers ..." in shown.partition("test session starts")[2]
    assert "1 passed" in shown


def test_not_in_workers(tmp_path):
    shown = on_a_terminal(tmp_path, "-n1")
    assert "importing PyTorch's compilers" not in shown
    assert "importing torch" not in shown
    assert shown.count("regional: workers import torch and collect tests ...") == 1  # by the process with the terminal
    assert "1 passed" in shown
