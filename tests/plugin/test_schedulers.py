"""pytest-xdist's schedulers when workers die in tests, or are retired before them: each test runs once, the run ends.

Workers are simulated as pytest-xdist's are: one begins a test when it knows the next, or that there is none.
"""

from __future__ import annotations

import contextlib
import random
from types import SimpleNamespace

import pytest
from xdist import scheduler
from xdist.dsession import DSession
from xdist.remote import Producer

from pytest_regional.plugin.workers import ReportingErrors, WorkerHooks, allow_one_more

SCHEDULERS = {
    "each": scheduler.EachScheduling,
    "load": scheduler.LoadScheduling,
    "loadfile": scheduler.LoadFileScheduling,
    "loadgroup": scheduler.LoadGroupScheduling,
    "loadscope": scheduler.LoadScopeScheduling,
    "worksteal": scheduler.WorkStealingScheduling,
}
LIMIT = 500


class Worker:
    """A worker with the tests that it was sent; ``regional_retired`` is what the plugin sets when it exits."""

    def __init__(self, number, all_tests):
        self.gateway = SimpleNamespace(id=f"gw{number}", spec="popen")
        self.all_tests = all_tests
        self.tests = []
        self.asked = None
        self.spoiled = self.shutting_down = self.collected = False

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


def mend(made):
    """Have the plugin's hook get ``made`` from pytest-xdist, as it does in a run."""
    session = SimpleNamespace(config=None, scratch_dir=None, errors=ReportingErrors())
    hook = WorkerHooks(session).pytest_xdist_make_scheduler()
    next(hook)
    with pytest.raises(StopIteration) as returned:
        hook.send(made)
    assert returned.value.value is made


class Run:
    """A simulated run.

    Attributes:
        ran: the tests, in the order in which they ran.
        crashed: those of which the scheduler said that a worker died in them.
    """

    def __init__(self, distribution, seed, mend=mend):
        self.draw = draw = random.Random(seed)
        names = [f"test_{draw.randrange(3)}.py::test_{number}" for number in range(draw.randrange(1, 30))]
        self.names = [name + draw.choice(["", "", f"@group{draw.randrange(2)}"]) for name in names]
        bad = draw.sample(self.names, draw.randrange(min(6, len(names)) + 1))
        self.crashing, self.spoiling = set(bad[::2]), set(bad[1::2])
        self.workers = draw.randrange(1, 4)
        config = SimpleNamespace(
            option=SimpleNamespace(loadscopereorder=True),
            getvalue={"dist": distribution, "tx": ["popen"] * self.workers}.__getitem__,
            getoption={"maxschedchunk": None}.__getitem__,
        )
        self.scheduler = SCHEDULERS[distribution](config, Producer("test", enabled=False))
        mend(self.scheduler)
        self.early_deaths = 3 if distribution.startswith("load") and distribution != "load" else 0
        self.ran, self.crashed, self.living, self.started = [], [], [], 0

    def start_worker(self):
        self.living.append(Worker(self.started, len(self.names)))
        self.started += 1
        self.scheduler.add_node(self.living[-1])

    def end_worker(self, worker, *, replaced):
        self.living.remove(worker)
        crashed = None
        with contextlib.suppress(KeyError):  # as pytest-xdist does: some were found superfluous at the start
            crashed = self.scheduler.remove_node(worker)
        if replaced:
            self.start_worker()
        return crashed

    def to_its_end(self):
        for _ in range(self.workers):
            self.start_worker()
        while self.living:
            assert len(self.ran) < LIMIT, "the run does not end"
            if self.scheduler.tests_finished:
                for worker in self.living:
                    worker.shutdown()
            ready = [worker for worker in self.living if worker.can_go_on()]
            assert ready, f"all workers wait; {len(self.ran)} of {len(self.names)} tests have run"
            self.step(self.draw.choice(ready))
        return self

    def step(self, worker):
        if self.early_deaths and self.scheduler.collection is None and self.draw.random() < 0.2:
            self.early_deaths -= 1  # whether or not it has collected
            assert self.end_worker(self.draw.choice(self.living), replaced=True) is None
        elif not worker.collected:
            worker.collected = True
            self.scheduler.add_node_collection(worker, self.names)
            if self.scheduler.collection_is_completed:
                self.scheduler.schedule()
        elif worker.asked is not None:
            stolen = worker.asked if set(worker.asked) <= set(worker.tests[1:]) else []
            worker.asked, worker.tests = None, [test for test in worker.tests if test not in stolen]
            self.scheduler.remove_pending_tests_from_node(worker, stolen)
        elif not worker.tests:
            assert self.end_worker(worker, replaced=False) is None
        elif worker.spoiled:
            worker.regional_retired = True
            assert self.end_worker(worker, replaced=True) is None, "its next test is taken for one that crashed"
        else:
            test = worker.tests.pop(0)
            self.ran.append(self.names[test])
            if self.names[test] in self.crashing:
                self.crashed.append(self.end_worker(worker, replaced=True))
            else:
                worker.spoiled |= self.names[test] in self.spoiling
                self.scheduler.mark_test_complete(worker, test)

    @property
    def is_right(self):
        times = self.workers if self.scheduler.__class__ is scheduler.EachScheduling else 1
        return sorted(self.ran) == sorted(self.names * times) and sorted(self.crashed) == sorted(
            [*self.crashing] * times
        )


@pytest.mark.parametrize("distribution", SCHEDULERS)
def test_each_test_runs_once_and_the_run_ends(distribution):
    for seed in range(300):
        assert Run(distribution, seed).to_its_end().is_right, seed


@pytest.mark.parametrize("distribution", SCHEDULERS)
def test_pytest_xdist_itself_does_not_do_that(distribution):
    """When this test fails because nobody is retired, `_mend_scopes` or `_mend_each` has had its time."""
    wrong = 0
    for seed in range(100):
        run = Run(distribution, seed, mend=lambda scheduler: None)
        run.spoiling = set() if distribution not in ("load", "worksteal") else run.spoiling
        try:
            wrong += not run.to_its_end().is_right
        except (AssertionError, KeyError):
            wrong += 1
    assert wrong > 30


DIES = """
    import os

    @pytest.mark.parametrize("n", range(6))
    def test_it(n):
        assert n != 2 or os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(
    "distribution",
    [
        pytest.param(
            name,
            marks=()
            if name == "load"
            else pytest.mark.slow("starts two workers", fast="test_each_test_runs_once_and_the_run_ends"),
        )
        for name in SCHEDULERS
    ],
)
def test_a_crash_is_one_failure_and_all_other_results_are_kept(downstream, distribution):
    result = downstream(DIES, "--regional-backend=aot_eager", "-n2", f"--dist={distribution}", subprocess=True)
    times = 2 if distribution == "each" else 1
    result.assert_outcomes(failed=times, passed=5 * times)
    result.stdout.fnmatch_lines(["*crashed while running*test_it?2?*"])


@pytest.mark.slow("starts two workers", fast="test_each_test_runs_once_and_the_run_ends")
def test_a_scheduler_of_the_users_is_mended_too(downstream, pytester):
    pytester.makeconftest(
        """
        from xdist.scheduler import LoadFileScheduling

        class Own(LoadFileScheduling):
            def schedule(self):
                print("my own scheduler")
                super().schedule()

        def pytest_xdist_make_scheduler(config, log):
            return Own(config, log)
        """
    )
    result = downstream(DIES, "--regional-backend=aot_eager", "-n1", "-s", subprocess=True)
    result.stdout.fnmatch_lines(["*my own scheduler*", "*1 failed, 5 passed*"])


def config(given, session):
    return SimpleNamespace(
        option=SimpleNamespace(maxworkerrestart=given), pluginmanager=SimpleNamespace(getplugin=lambda name: session)
    )


def test_workers_that_die_in_tests_do_not_use_up_the_limit(pytestconfig, monkeypatch):
    monkeypatch.setattr(pytestconfig.option, "maxworkerrestart", None)
    monkeypatch.setattr(pytestconfig.option, "numprocesses", 2)
    session = DSession(pytestconfig)
    assert session._max_worker_restart == 8
    allow_one_more(config(None, session))
    assert session._max_worker_restart == 9
    allow_one_more(config("3", session))  # what the user says holds
    assert session._max_worker_restart == 9
    allow_one_more(config(None, None))
