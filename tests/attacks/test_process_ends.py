"""A test that ends the process of the run, or makes two of it: it is named, and nothing says that all is well."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import time
from types import SimpleNamespace

import pytest

from pytest_regional._base.processes import guard_forks

from .runs import REPORTS, Run, run

BEFORE = """
@marked
def test_before(regional):
    assert regional.randn(2).shape == (2,)
"""
BEHIND = """
@marked
def test_behind(regional):
    assert regional.randn(2).shape == (2,)
"""
TEST = """
from os import _exit as kept_name
@marked
def test_ends(regional):
    {code}
"""

#: What ends the process by a function of Python's, and the exit status that is left: never 0.
GUARDED = {
    "kept_name(0)": 1,
    "os._exit(7)": 7,
    "os.execlp('true', 'true')": 1,
    "os.abort()": -signal.SIGABRT,
    "thread = threading.Thread(target=os._exit, args=(0,)); thread.start(); time.sleep(60)": 1,
}
#: What ends it without that Python hears of it.
UNSEEN = {
    "ctypes.CDLL(None)._exit(0)": 0,
    "os.kill(os.getpid(), signal.SIGSEGV)": -signal.SIGSEGV,
}

GREEN = '{"version": 1, "created": "", "versions": {}, "machine": {}, "options": {}, "tests": [], "lost_workers": 0}'


def ended_by(tmp_path, code: str, *options: str) -> Run:
    for name in REPORTS:
        (tmp_path / name).write_text(GREEN)  # of an earlier run, where all was well
    return run(tmp_path, BEFORE + TEST.format(code=code) + BEHIND, *options)


def is_refused(run: Run, said: str) -> bool:
    status, complaint = run.merge()
    return status == 2 and "did not finish" in complaint and said in complaint


@pytest.mark.parametrize("code", GUARDED)
def test_a_function_that_ends_the_process(tmp_path, code):
    run = ended_by(tmp_path, code)
    assert run.status == GUARDED[code]
    place = "threading.py" if "Thread" in code else "test_it.py"
    said = "the run does not finish: test_it.py::test_ends ended it with os."
    run.lines.fnmatch_lines([f"pytest-regional: {said}*, called at *{place}:*"])
    assert run.ended == {"test_before": "passed", "test_ends": "crashed"}
    assert "test_ends ended it with" in run.page
    assert GREEN not in run.page
    assert is_refused(run, "test_ends ended it with os.")
    assert run.left == []


@pytest.mark.parametrize("code", UNSEEN)
def test_what_python_does_not_hear_of(tmp_path, code):
    run = ended_by(tmp_path, code)
    assert run.status == UNSEEN[code]
    assert "last heard of while it ran test_it.py::test_ends" in run.page
    assert run.report["tests"] == []
    assert is_refused(run, "while it ran test_it.py::test_ends")


def hold(folder):
    """Lock a run's directory as the run does; return what lets it go."""
    file = (folder / "lock").open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file.close


def test_the_next_run_removes_what_a_killed_one_left_and_nothing_else(tmp_path):
    assert len(ended_by(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)").left) == 1
    living, without_lock = (tmp_path / "temporary" / f"pytest-regional-{name}" for name in ("living", "lockless"))
    living.mkdir()
    without_lock.mkdir()
    let_go = hold(living)
    run = ended_by(tmp_path, "pass")
    assert run.ended["test_ends"] == "passed"
    assert sorted(run.left) == sorted([living.name, without_lock.name])
    let_go()
    assert ended_by(tmp_path, "pass").left == [without_lock.name]


def test_another_users_or_a_linked_directory_is_not_removed(tmp_path, monkeypatch, pytester):
    def begin_a_run():
        pytester.parseconfig("--regional-backend=aot_eager")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    elsewhere, foreign = tmp_path / "elsewhere", tmp_path / "pytest-regional-foreign"
    for folder in (elsewhere, foreign):
        folder.mkdir()
        hold(folder)()
    (tmp_path / "pytest-regional-link").symlink_to(elsewhere)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # a worker removes nothing
    with monkeypatch.context() as patch:
        patch.setattr("os.getuid", lambda: foreign.stat().st_uid + 1)
        begin_a_run()
    assert foreign.exists()
    begin_a_run()
    assert not foreign.exists()
    assert (elsewhere / "lock").exists()


#: What a forked process does, and the exit status it has to have: as if pytest had not been there.
CHILDREN = {
    "raises": ("raise ValueError('in the child')", 1, "ValueError: in the child"),
    "leaves": ("sys.exit(5)", 5, ""),
    "returns": ("return", 0, "lacks an os._exit"),
    "interrupts": ("raise KeyboardInterrupt", 1, ""),
    "ends": ("os._exit(9)", 9, ""),
    "is_terminated": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", -signal.SIGTERM, ""),
}
FORKS = """
@marked
def test_child_{name}(regional):
    child = os.fork()
    if child == 0:
        {code}
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == {status}
"""
IN_FIXTURES = """
@pytest.fixture
def forks():
    yield
    child = os.fork()
    assert child, "in the teardown of the child"
    os.waitpid(child, 0)

@marked
def test_fixture(forks, regional):
    pass
"""


def test_a_forked_process_that_comes_back_is_no_second_pytest(tmp_path):
    tests = [FORKS.format(name=name, code=code, status=status) for name, (code, status, _) in CHILDREN.items()]
    run = ended_by(tmp_path, "pass\n" + "".join(tests) + IN_FIXTURES, "--regional-timeout=100", "-n2")
    names = [*(f"child_{name}" for name in CHILDREN), "fixture"]
    assert run.ended == dict.fromkeys([*(f"test_{name}" for name in [*names, "before", "ends", "behind"])], "passed")
    assert run.status == 0
    for name, (_, _, said) in CHILDREN.items():
        if said:
            assert f"test_child_{name} forked returned into pytest" in run.printed
            assert said in run.printed
    assert "in the teardown of the child" in run.printed
    run.lines.fnmatch_lines([f"*{len(names) + 3} passed*"])
    assert run.printed.count(" passed in ") + run.printed.count(" passed, ") == 1
    assert run.report.get("unfinished", "") == ""


def test_a_forked_process_lets_go_of_the_pipes_of_its_worker():
    """Else the controller hears of the worker's death when the forked process ends."""
    reading, writing = os.pipe()
    nothing = os.open(os.devnull, os.O_RDONLY)
    gateway = SimpleNamespace(_io=SimpleNamespace(infile=os.fdopen(nothing), outfile=os.fdopen(writing, "w")))
    plugin = SimpleNamespace(channel=SimpleNamespace(gateway=gateway))
    config = SimpleNamespace(workerinput={}, pluginmanager=SimpleNamespace(get_plugins=lambda: [plugin]))
    put_back = guard_forks(config)
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    try:
        put_back()
        gateway._io.outfile.close()
        gateway._io.infile.close()
        assert select.select([reading], [], [], 10)[0], "the forked process holds the other end"
        assert os.read(reading, 1) == b""
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)


STAYS = """
@marked
def test_leaves_a_process_and_dies(regional):
    if (child := os.fork()) == 0:
        for number in (1, 2):  # as a server does
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        time.sleep(3600)
        os._exit(0)
    with open("child", "w") as file:
        file.write(str(child))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow(
    "starts runs with two workers, which import torch",
    fast="test_a_forked_process_lets_go_of_the_pipes_of_its_worker",
)
def test_a_forked_process_that_stays_does_not_hide_the_death_of_its_worker(tmp_path):
    run = ended_by(tmp_path, "pass\n" + STAYS, "-n1")
    # It is still there, so nothing waited for it.
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    assert run.ended["test_leaves_a_process_and_dies"] == "crashed"
    assert run.ended["test_behind"] == "passed"


def test_a_run_that_was_interrupted_is_refused(tmp_path):
    run = ended_by(tmp_path, "pytest.exit('enough', returncode=0)")
    assert run.status == 0
    assert run.ended == {"test_before": "passed", "test_ends": "not finished"}
    assert is_refused(run, "")
