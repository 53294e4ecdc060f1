"""A test leaves what cannot be put back: its worker ends, another runs the rest, and no test is lost or run twice.

Schedulers are pytest-xdist's, workers are simulated as its are: one begins a test when it knows the next, or that there
is none. One run has real workers.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from xdist import scheduler
from xdist.remote import Producer

from pytest_regional._retirement import Retirement, UnrestorableStateError, keep_tests_of_retired_workers
from pytest_regional._xdist import DISTRIBUTIONS, scheduler_for
from pytest_regional.harness.isolation import Leak
from tests.warm_process import run_module

PLAIN = {
    "each": scheduler.EachScheduling,
    "load": scheduler.LoadScheduling,
    "worksteal": scheduler.WorkStealingScheduling,
}


class Config:
    """What schedulers ask of pytest's configuration."""

    def __init__(self, distribution, workers):
        self.option = SimpleNamespace(loadscopereorder=True)
        self.getvalue = {"dist": distribution, "tx": ["popen"] * workers}.__getitem__
        self.getoption = {"maxschedchunk": None}.__getitem__


class Worker:
    """A worker with the tests that it was sent; ``retired`` once one of them left something for good."""

    def __init__(self, number, all_tests):
        self.gateway = SimpleNamespace(id=f"gw{number}", spec="popen")
        self.all_tests = all_tests
        self.tests = []
        self.asked = None
        self.retired = self.shutting_down = self.collected = False

    def send_runtest_some(self, indices):
        self.tests += indices

    def send_runtest_all(self):
        self.tests += range(self.all_tests)

    def send_steal(self, indices):
        self.asked = indices

    def shutdown(self):
        self.shutting_down = True

    def can_go_on(self):
        return not self.collected or self.shutting_down or len(self.tests) > 1 or self.asked is not None


def step(scheduling, worker, names, harmful, ran):
    """Have a worker do one thing; say whether it is still there."""
    if not worker.collected:
        worker.collected = True
        scheduling.add_node_collection(worker, names)
        if scheduling.collection_is_completed:
            scheduling.schedule()
    elif worker.asked is not None:
        stolen = worker.asked if set(worker.asked) <= set(worker.tests[1:]) else []
        worker.asked, worker.tests = None, [test for test in worker.tests if test not in stolen]
        scheduling.remove_pending_tests_from_node(worker, stolen)
    elif worker.tests and worker.retired:
        worker.regional_retired = True
        assert scheduling.remove_node(worker) is None, "its next test is taken for one that crashed"
        return False
    elif worker.tests:
        test = worker.tests.pop(0)
        ran.append(names[test])
        worker.retired |= names[test] in harmful
        scheduling.mark_test_complete(worker, test)
    else:
        if worker in scheduling.nodes:
            assert scheduling.remove_node(worker) is None
        return False
    return True


def run(scheduling, names, harmful, workers, draw):
    """Return the tests that ran, and how many workers ended on purpose."""
    ran, ended, living = [], 0, [Worker(number, len(names)) for number in range(workers)]
    for worker in living:
        scheduling.add_node(worker)
    while living:
        if scheduling.tests_finished:
            for worker in living:
                worker.shutdown()
        ready = [worker for worker in living if worker.can_go_on()]
        assert ready, f"all workers wait; {len(ran)} tests have run"
        worker = draw.choice(ready)
        if not step(scheduling, worker, names, harmful, ran):
            living.remove(worker)
            if worker.retired and worker.tests:
                ended += 1
                living.append(Worker(workers + ended, len(names)))
                scheduling.add_node(living[-1])
    return ran, ended


@pytest.mark.parametrize("distribution", [*PLAIN, *DISTRIBUTIONS])
def test_each_test_runs_once(distribution):
    ends = 0
    for seed in range(200):
        draw = random.Random(seed)
        names = [f"test_{draw.randrange(3)}.py::test_{number}" for number in range(draw.randrange(1, 30))]
        harmful = set(draw.sample(names, draw.randrange(min(6, len(names)) + 1)))
        config, log = Config(distribution, draw.randrange(1, 4)), Producer("test", enabled=False)
        workers = len(config.getvalue("tx"))
        scheduling = scheduler_for(config, log) or PLAIN[distribution](config, log)
        keep_tests_of_retired_workers(scheduling)
        ran, ended = run(scheduling, names, harmful, workers, draw)
        ends += ended
        assert sorted(ran) == sorted(names * (workers if distribution == "each" else 1)), seed
    assert ends > 100


@pytest.mark.parametrize("distribution", ["load", "worksteal"])
def test_without_our_doing_the_next_test_would_be_taken_for_crashed(distribution):
    names = [f"test_it.py::test_{number}" for number in range(9)]
    config, log = Config(distribution, 1), Producer("test", enabled=False)
    with pytest.raises(AssertionError, match="taken for one that crashed"):
        run(PLAIN[distribution](config, log), names, {names[1]}, 1, random.Random(0))


def retirement(folder: Path, *, worker: bool, restarts=None):
    config = SimpleNamespace(option=SimpleNamespace(maxworkerrestart=restarts))
    if worker:
        config.workerinput = {"workerid": "gw0"}
    return Retirement(config, folder)


LEFT = [Leak("a setting", 1, 2, restored=False, unrestorable=True)]


@pytest.mark.parametrize(("worker", "restarts"), [(False, None), (True, "0"), (True, "3")])
def test_where_no_other_process_runs_the_rest_the_test_fails(tmp_path, worker, restarts):
    with pytest.raises(UnrestorableStateError, match="test_it left state that cannot be restored: a setting"):
        retirement(tmp_path, worker=worker, restarts=restarts).retire("test_it", LEFT)


def test_a_worker_leaves_a_note_that_the_controller_reads_once(tmp_path, monkeypatch):
    ends = []
    monkeypatch.setattr("pytest_regional._retirement._exit", ends.append)
    of_worker = retirement(tmp_path, worker=True)
    item = SimpleNamespace(session=SimpleNamespace(_setupstate=SimpleNamespace(teardown_exact=lambda item: 1 / 0)))
    of_worker.exit_before(item)
    assert not ends
    of_worker.retire("test_it", LEFT)
    of_worker.exit_before(item)
    assert ends == [0]
    node, controller = SimpleNamespace(gateway=SimpleNamespace(id="gw0")), retirement(tmp_path, worker=False)
    note = controller.of_worker(node)
    assert note["because"] == "test_it left a setting"
    assert "ZeroDivisionError" in note["error"]
    assert controller.of_worker(node) is None
    assert node.regional_retired


TESTS = """
import os, pathlib, pytest, torch

pytestmark = pytest.mark.regional_compile(expects_regions=False)

@pytest.fixture(scope="session", autouse=True)
def whole():
    yield
    log("torn down")

def log(what):
    with open("ran.txt", "a") as file:
        print(what, os.getpid(), torch.get_num_interop_threads(), file=file)

BEGAN_WITH = torch.get_num_interop_threads()

@pytest.mark.parametrize("number", range(6))
def test_it(number):
    log(number)
    if number in (1, 2) and torch.get_num_interop_threads() == BEGAN_WITH:
        torch.set_num_interop_threads(BEGAN_WITH + 1)

def test_last():
    log("last")
"""


def test_real_workers(pytester):
    pytester.makepyfile(test_it=TESTS)
    options = ("-p", "no:randomly", "-p", "no:cacheprovider", "-n1", "--regional-backend=aot_eager")
    files = ("--junitxml=junit.xml", "--regional-report=report.json")
    done = run_module("pytest", [*options, *files], pytester.path, os.environ, timeout=300)
    assert "7 passed" in done.stdout, done.stdout
    assert "crashed while" not in done.stdout
    assert "gw0 is retired: test_it.py::test_it[1] left number of threads between operators" in done.stdout
    assert "cannot be restored: number of threads between operators (this worker is retired" in done.stdout
    ran = [line.rsplit(maxsplit=2) for line in Path("ran.txt").read_text().splitlines()]
    assert [what for what, _, _ in ran][:5] == ["0", "1", "torn down", "2", "torn down"]
    assert sorted(what for what, _, _ in ran[5:]) == [*"345", "last", "torn down"]
    assert len({process for _, process, _ in ran}) == 3
    assert len({threads for what, _, threads in ran if what != "torn down"}) == 1
    suite = ElementTree.parse("junit.xml").getroot()[0]
    assert (suite.get("tests"), len(suite.findall("testcase"))) == ("7", 7)
    report = json.loads(Path("report.json").read_text())
    assert [test["outcome"] for test in report["tests"]] == ["passed"] * 7


def test_a_run_without_workers_fails_at_the_test(pytester):
    pytester.makepyfile(test_it=TESTS)
    options = ("-p", "no:randomly", "-p", "no:cacheprovider", "-n0", "--regional-backend=aot_eager")
    done = run_module("pytest", options, pytester.path, os.environ, timeout=300)
    result = pytest.RunResult(done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), 0)
    result.assert_outcomes(passed=7, errors=1)
    result.stdout.fnmatch_lines(
        ["*UnrestorableStateError: test_it.py::test_it*1* left state that cannot be restored: number of threads*"]
    )
