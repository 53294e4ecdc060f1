"""``in_new_process``: a new process, the same cache folder; a skip there is a skip here. Both ways to start it."""

from __future__ import annotations

import atexit
import faulthandler
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from pytest_regional import NewProcessError, VacuousTestError
from pytest_regional._base.limits import RegionalTimeoutError, time_limit
from pytest_regional._base.processes import VARIABLE
from pytest_regional.harness.process import ForkServers, NewProcesses, interpreter_environment, run_interpreter
from pytest_regional.testing import regional

from .programs import pair, product


@pytest.fixture(scope="module")
def servers():
    made = ForkServers(1, "cpu")
    yield made
    made.end()


INTERPRETERS = pytest.mark.slow("starts interpreters that import torch", fast="test_a_timeout_shows_stack_and_output")


@pytest.fixture(params=[pytest.param("spawn", marks=INTERPRETERS), "forkserver"], autouse=True)
def _way(request, monkeypatch):
    """Start each new process in one way, and no other."""
    if request.param == "spawn":
        yield
        return
    servers, made = request.getfixturevalue("servers"), []

    def new_processes():
        made.append(NewProcesses(servers, "cpu"))
        return made[-1]

    monkeypatch.setattr("pytest_regional.harness.regional.NewProcesses", new_processes)
    yield
    assert not any(one.interpreters for one in made)


def compile_product(regional, size):
    regional.compile(product)(*pair(regional, size))
    return size, os.getpid()


def add(a, b):
    return a + b


def fail():
    print("printed before the failure")
    raise LookupError("nothing there")


def skip():
    pytest.skip("no such device there")


def crash():
    faulthandler._sigsegv()


def die():
    os._exit(7)


def return_a_function():
    return lambda: None


def quiet():
    return regional("aot_eager", expects_regions=False)


@pytest.mark.parametrize("_way", ["spawn", "forkserver"], indirect=True)
def test_an_interpreter_of_its_own():
    with regional("torch", expects_regions=False) as r:
        there = r.in_new_process(compile_product, 4)
    assert there.value[0] == 4
    assert there.value[1] != os.getpid()
    assert (there.counters.region_compiles, there.counters.region_cache_hits) == (1, 0)


def test_cold_then_warm():
    with regional("torch", expects_regions=False) as r:
        cold = r.in_new_process(compile_product, 4)
        warm = r.in_new_process(compile_product, 4)
    assert cold.value[0] == warm.value[0] == 4
    assert len({cold.value[1], warm.value[1], os.getpid()}) == 3
    assert (cold.counters.region_compiles, cold.counters.region_cache_hits) == (1, 0)
    assert (warm.counters.region_compiles, warm.counters.region_cache_hits) == (0, 1)


def compile_and_tell_where(regional):
    regional.compile(product)(*pair(regional))
    return os.environ["TORCHINDUCTOR_CACHE_DIR"], os.environ["TRITON_CACHE_DIR"]


def test_a_moved_cache_is_read_where_the_test_says(tmp_path, monkeypatch):
    """As it is when a cache was made in one directory and baked into an image at another."""
    with regional("reference") as r:
        (made, _), cold = r.in_new_process(compile_and_tell_where)
        moved = tmp_path / "elsewhere" / "cache"
        shutil.move(made, moved)
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(moved))
        used, warm = r.in_new_process(compile_and_tell_where)
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
        both, _ = r.in_new_process(compile_and_tell_where)
    assert made == str(r.folder)
    assert (cold.cache_hits, cold.cache_misses) == (0, 1)
    assert used == (str(moved), str(moved / "triton"))
    assert (warm.cache_hits, warm.cache_misses, warm.region_compiles) == (1, 0, 0)
    assert both == (str(moved), str(tmp_path))


def test_a_function_without_harness_gets_only_its_arguments():
    with quiet() as r:
        value, counters = r.in_new_process(add, 2, 3)
    assert value == 5
    assert counters.graphs == 0


def test_a_failure_there_is_a_failure_here_with_traceback_and_output():
    with quiet() as r, pytest.raises(NewProcessError) as caught:
        r.in_new_process(fail)
    assert "LookupError: nothing there" in str(caught.value)
    assert "printed before the failure" in str(caught.value)


def leave_work_for_the_end(folder):
    atexit.register(Path(folder, "at the end").touch)

    def slowly():
        time.sleep(0.5)
        Path(folder, "of a thread").touch()

    threading.Thread(target=slowly).start()


def test_what_is_left_for_the_end_of_the_process_is_done(tmp_path):
    with quiet() as r:
        r.in_new_process(leave_work_for_the_end, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"at the end", "of a thread"}


def leave_a_pool_of_threads(number):
    pool = ThreadPoolExecutor(1)
    atexit.register(id, pool)  # so that it lives as long as the process, as those of Inductor do
    return pool.submit(abs, number).result()


def test_a_pool_whose_threads_wait_for_work_does_not_keep_the_process():
    with quiet() as r:
        assert r.in_new_process(leave_a_pool_of_threads, -3, timeout=60).value == 3


def test_a_skip_there_is_a_skip_here():
    with quiet() as r, pytest.raises(pytest.skip.Exception, match="no such device there"):
        r.in_new_process(skip)


def hang_in_c(started):
    """Hold the lock of the interpreter in a loop of C that looks at no signal; another thread of the test waits."""
    threading.Thread(target=wait_beside, daemon=True).start()
    Path(started).write_text(str(os.getpid()))
    all(itertools.repeat(True))


def wait_beside():
    time.sleep(600)


def start_one_that_hangs(started):
    """Wait for an interpreter that hangs, which itself waits for a program of another language."""
    subprocess.run([sys.executable, "-c", HANGING, str(started)], check=False)


def fork_one_that_hangs(started):
    if os.fork() == 0:
        hang_in_fork(started)
    os.wait()


def hang_in_fork(started):
    Path(started).write_text(str(os.getpid()))
    time.sleep(600)


HANGING = """
import subprocess, sys

def far_below():
    child = subprocess.Popen(["sleep", "600"])
    open(sys.argv[1], "w").write(str(child.pid))
    child.wait()

far_below()
"""


def state(number):
    """Return the state of a process as proc(5) has it: ``Z`` is dead, and its parent has not looked."""
    stat = Path("/proc", number, "stat")
    return stat.read_text().rpartition(")")[2].split()[0] if stat.exists() else "gone"


def end_time_when_there(file):
    """Have the time limit of a test be over a moment after ``file`` is there: no clock says when a process hangs."""

    def wait():
        while not file.exists() or not file.read_text():
            time.sleep(0.05)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGALRM)

    threading.Thread(target=wait, daemon=True).start()


@pytest.mark.skipif(not Path("/proc/uptime").exists(), reason="processes are seen on Linux alone")
class TestAHang:
    """What is said of one when the time of the test is over."""

    def said_of(self, function, started):
        end_time_when_there(started)
        with quiet() as r, pytest.raises(RegionalTimeoutError) as caught, time_limit(600):
            r.in_new_process(function, started)
        notes = getattr(caught.value, "__notes__", [])
        return "\n".join([str(caught.value), *notes])

    def test_in_code_of_another_language_shows_its_stack(self, tmp_path):
        shown = self.said_of(hang_in_c, tmp_path / "started")
        assert "in hang_in_c" in shown
        assert shown.index("in hang_in_c") < shown.index("in wait_beside") < shown.index("in said_of")
        assert "runpy" not in shown
        assert "in _answer" not in shown

    @pytest.mark.parametrize("function", [start_one_that_hangs, fork_one_that_hangs])
    def test_shows_its_forks_and_ends_what_it_started(self, tmp_path, function):
        shown = self.said_of(function, tmp_path / "started")
        assert f"in {function.__name__}" in shown
        assert ("in hang_in_fork" in shown) == (function is fork_one_that_hangs)
        assert state((tmp_path / "started").read_text()) in ("gone", "Z")


HANGS = """
import subprocess, sys, time
from pytest_regional._base.processes import write_when_asked

def waits():
    print("printed before", flush=True)
    print("complained", file=sys.stderr, flush=True)
    time.sleep(600)

write_when_asked()
waits()
"""


def test_a_timeout_shows_stack_and_output(tmp_path):
    Path(tmp_path, "hangs.py").write_text(HANGS)
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": paths, VARIABLE: str(tmp_path / "stacks")}
    with pytest.raises(subprocess.TimeoutExpired) as late:
        run_interpreter("hangs", [], environment, 8)
    assert "in waits" in late.value.stdout
    assert "it printed:\nprinted before\ncomplained" in late.value.stdout


def test_a_call_that_does_not_end_in_time_is_killed():
    with quiet() as r, pytest.raises(NewProcessError, match="did not answer within 1 s and was killed"):
        r.in_new_process(wait_beside, timeout=1)


def test_a_crash_shows_its_stack():
    with quiet() as r, pytest.raises(NewProcessError, match="without an answer\nexit status -11") as caught:
        r.in_new_process(crash)
    assert "in crash" in str(caught.value)


def test_a_death_is_reported():
    with quiet() as r, pytest.raises(NewProcessError, match="without an answer\nexit status 7"):
        r.in_new_process(die)


def test_a_value_that_cannot_travel_is_reported():
    with quiet() as r, pytest.raises(NewProcessError, match="cannot be pickled"):
        r.in_new_process(return_a_function)


def test_local_functions_are_refused():
    with quiet() as r, pytest.raises(TypeError, match="top of a module"):
        r.in_new_process(lambda: 3)


def test_arguments_that_cannot_travel_are_refused():
    with quiet() as r, pytest.raises(TypeError, match="picklable"):
        r.in_new_process(add, lambda: 3, 4)


def test_what_a_process_compiled_this_test_compiled():
    with regional() as r:
        r.in_new_process(compile_product, 4)


def test_a_process_that_compiles_nothing_leaves_the_test_vacuous():
    with pytest.raises(VacuousTestError), regional() as r:
        r.in_new_process(add, 1, 2)


def compile_with_inductor(regional):
    torch.compile(product, backend="inductor")(*pair(regional))


def test_a_process_that_compiles_with_another_backend_leaves_the_test_vacuous():
    with pytest.raises(VacuousTestError), regional("torch") as r:
        r.in_new_process(compile_with_inductor)


def test_the_environment_of_a_new_interpreter(monkeypatch):
    for name in ("PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "LEFT_OUT", "KEPT"):
        monkeypatch.setenv(name, "here")
    monkeypatch.setenv("PYTHONPATH", "mine")

    environment = interpreter_environment("LEFT_OUT", ADDED="more")

    assert not {"PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "LEFT_OUT"} & environment.keys()
    assert (environment["KEPT"], environment["ADDED"]) == ("here", "more")
    assert environment["PYTHONPATH"] == os.pathsep.join([str(Path(__file__).parents[2]), "mine"])
    assert "here" not in repr(environment)
