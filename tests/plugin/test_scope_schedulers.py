"""``--dist loadgroup`` and its like when workers die in tests: each test runs once, and the run ends.

Workers are simulated as pytest-xdist's are: one runs a test when it knows the next, or that there is none.
``python -m bench.crash_run --dist loadgroup`` shows it with real ones.
"""

from __future__ import annotations

import contextlib
import random
from types import SimpleNamespace

import pytest
from xdist import scheduler
from xdist.remote import Producer

from pytest_regional._xdist import DISTRIBUTIONS, scheduler_for

OWN = {
    "loadfile": scheduler.LoadFileScheduling,
    "loadgroup": scheduler.LoadGroupScheduling,
    "loadscope": scheduler.LoadScopeScheduling,
}
LIMIT = 500


class Config:
    """What schedulers ask of pytest's configuration."""

    def __init__(self, distribution, workers):
        self.option = SimpleNamespace(loadscopereorder=True)
        self.getvalue = {"dist": distribution, "tx": ["popen"] * workers}.__getitem__


class Worker:
    """A worker with the tests that it was sent."""

    def __init__(self, number):
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.tests = []
        self.shutting_down = False
        self.collected = False

    def send_runtest_some(self, indices):
        self.tests += indices

    def shutdown(self):
        self.shutting_down = True

    def can_go_on(self):
        return not self.collected or self.shutting_down or len(self.tests) > 1


def run(scheduling, names, crashing, workers, draw):
    """Return the tests in the order in which they ran, and those of which the scheduler said that a worker died."""
    ran, crashed, living = [], [], [Worker(number) for number in range(workers)]
    for worker in living:
        scheduling.add_node(worker)
    started = workers
    while living:
        if scheduling.tests_finished:
            for worker in living:
                worker.shutdown()
        ready = [worker for worker in living if worker.can_go_on()]
        assert ready, f"all workers wait; {len(ran)} of {len(names)} tests have run"
        assert len(ran) < LIMIT, "the run does not end"
        worker = draw.choice(ready)
        if scheduling.collection is None and started < workers + 3 and draw.random() < 0.2:
            worker = draw.choice(living)  # it dies early, whether or not it has collected
            living.remove(worker)
            with contextlib.suppress(KeyError):
                assert scheduling.remove_node(worker) is None
            started += 1
            living.append(Worker(started))
            scheduling.add_node(living[-1])
            continue
        if not worker.collected:
            worker.collected = True
            scheduling.add_node_collection(worker, names)
            if scheduling.collection_is_completed:
                scheduling.schedule()
            continue
        if not worker.tests:
            living.remove(worker)
            with contextlib.suppress(KeyError):  # as its session does: some were found superfluous at the start
                assert scheduling.remove_node(worker) is None
            continue
        test = worker.tests.pop(0)
        ran.append(names[test])
        if names[test] not in crashing:
            scheduling.mark_test_complete(worker, test)
            continue
        living.remove(worker)
        with contextlib.suppress(KeyError):
            crashed.append(scheduling.remove_node(worker))
        started += 1
        living.append(Worker(started))
        scheduling.add_node(living[-1])
    return ran, crashed


def drawn(seed):
    """Return names of tests in files and groups, those that crash, and how many workers there are."""
    draw = random.Random(seed)
    names = [
        f"test_{draw.randrange(3)}.py::test_{number}" + draw.choice(["", "", f"@group{draw.randrange(2)}"])
        for number in range(draw.randrange(1, 30))
    ]
    return names, set(draw.sample(names, draw.randrange(min(6, len(names)) + 1))), draw.randrange(1, 4), draw


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_each_test_runs_once_and_the_run_ends(distribution):
    for seed in range(300):
        names, crashing, workers, draw = drawn(seed)
        scheduling = scheduler_for(Config(distribution, workers), Producer("test", enabled=False))
        ran, crashed = run(scheduling, names, crashing, workers, draw)
        assert sorted(ran) == sorted(names), seed
        assert sorted(crashed) == sorted(crashing), seed


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_pytest_xdist_itself_does_not_do_that(distribution):
    """When this test fails for all of them, ``scope_schedulers`` has had its time."""
    wrong = 0
    for seed in range(100):
        names, crashing, workers, draw = drawn(seed)
        scheduling = OWN[distribution](Config(distribution, workers), Producer("test", enabled=False))
        try:
            ran, _ = run(scheduling, names, crashing, workers, draw)
        except (AssertionError, KeyError):
            wrong += 1
        else:
            wrong += sorted(ran) != sorted(names)
    assert wrong > 50


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_worker_that_replaces_another_and_collects_other_tests_is_sent_away(distribution):
    """Nothing waits for it, and what the dead one had left is run by the other."""
    scheduling = scheduler_for(Config(distribution, 2), Producer("test", enabled=False))
    names = [f"test_{number}.py::test_it" for number in range(6)]
    first, second, late = map(Worker, range(3))
    for worker in (first, second):
        scheduling.add_node(worker)
        scheduling.add_node_collection(worker, names)
    scheduling.schedule()
    crashed = scheduling.remove_node(first)
    scheduling.add_node(late)
    scheduling.add_node_collection(late, names[1:])
    scheduling.schedule()
    assert late.shutting_down
    while second.can_go_on() and second.tests:
        scheduling.mark_test_complete(second, second.tests[0])
        second.tests.pop(0)
    assert not scheduling.workqueue
    assert crashed == names[first.tests[0]]


@pytest.mark.parametrize("distribution", ["load", "worksteal", "no"])
def test_other_distributions_are_left_alone(distribution):
    assert scheduler_for(Config(distribution, 2), None) is None


def test_a_scheduler_of_the_users_goes_first(downstream, pytester):
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
    result = downstream(
        "def test_it(): pass", "--regional-backend=aot_eager", "-n1", "--dist=loadfile", "-s", subprocess=True
    )
    result.stdout.fnmatch_lines(["*my own scheduler*", "*1 passed*"])
