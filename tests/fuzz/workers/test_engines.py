"""Worker processes of this machine: how their ends are told apart, and that nothing of theirs goes on."""

import os
import sys
import time

import pytest

from pytest_regional.fuzz.workers.assignment import CANNOT, DONE, Assignment
from pytest_regional.fuzz.workers.engines import LocalProcesses
from pytest_regional.fuzz.workers.plan import Part, Plan

PLAN = Plan((Part("reference", "cpu", "interpret"),), 7, programs=3, settings=("x",))

#: A module that is run in the place of a worker's; it imports no torch.
WORKER = """
import os, signal, subprocess, sys, time
from pytest_regional.fuzz.workers.assignment import Assignment
assignment = Assignment.loads(sys.stdin.readline())
def program():
    assignment.running.write_text('{"version": 1}')
"""


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Start a worker that runs some code, and return engine and assignment."""
    engines = []

    def start(body):
        (tmp_path / "own_worker.py").write_text(WORKER + body)
        path = os.pathsep.join([str(tmp_path), *sys.path])
        engine = LocalProcesses({"python": sys.executable}, {**os.environ, "PYTHONPATH": path}, "own_worker")
        engines.append(engine)
        assignment = Assignment("store", PLAN, "a", "place", "python", tmp_path / "scratch" / "a", 3.0, ("somewhere",))
        engine.start(assignment)
        return engine, assignment

    yield start
    for engine in engines:
        engine.close()


def ending(engine, seconds=20.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if ends := engine.endings():
            return ends[0]
        time.sleep(0.02)
    raise AssertionError("it did not end")


def test_an_assignment_arrives_as_it_was_sent(started):
    engine, assignment = started("print(assignment); sys.exit(2)")

    assert ending(engine).says == repr(assignment)


def test_who_ends_by_itself_says_how(started):
    engine, _ = started("print('no such backend'); sys.exit(2)")

    end = ending(engine)
    assert (end.status, end.says, end.by_itself) == (CANNOT, "no such backend", True)
    assert engine.endings() == []


def test_who_is_killed_leaves_the_program_it_died_of(started):
    engine, _ = started("program(); os.kill(os.getpid(), signal.SIGSEGV)")

    end = ending(engine)
    assert (end.status, end.says, end.by_itself, end.program) == (-11, "ended by SIGSEGV", False, {"version": 1})


def test_nothing_stays_of_what_a_worker_wrote(started):
    engine, assignment = started("import tempfile; tempfile.mkdtemp(); program(); os.kill(os.getpid(), signal.SIGSEGV)")

    ending(engine)

    assert list(assignment.scratch.parent.iterdir()) == []


def test_who_leaves_half_a_program_leaves_none(started):
    engine, _ = started("assignment.running.write_text('{'); os._exit(1)")

    assert ending(engine).program is None


def test_a_worker_is_stopped_by_the_end_of_its_input(started):
    engine, _ = started("sys.stdin.read(); sys.exit(0)")

    engine.stop()

    assert ending(engine).status == DONE


def test_a_killed_worker_takes_its_compilers_along(started, tmp_path):
    body = """
child = subprocess.Popen(['sleep', '600'])
open(assignment.scratch.parents[1] / 'child', 'w').write(str(child.pid)); program()
time.sleep(600)
"""
    engine, assignment = started(body)
    until = time.monotonic() + 20
    while not assignment.running.exists() and time.monotonic() < until:
        time.sleep(0.02)

    engine.kill("a")

    assert ending(engine).says == "ended by SIGKILL"
    child = int((tmp_path / "child").read_text())
    time.sleep(0.1)
    assert not is_running(child)


def test_closing_ends_what_is_left(started):
    engine, _ = started("time.sleep(600)")
    process = engine._running["a"][1]

    engine.close()

    assert process.poll() == -9


def is_running(number):
    """Tell whether a process is there, and no zombie that nobody waited for."""
    try:
        with open(f"/proc/{number}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
