"""Workers of pytest-xdist: their GPUs and seeds, those that die or are retired, and schedulers that survive it.

The schedulers are those of ``--dist loadgroup``, ``loadscope``, ``loadfile`` and ``each``.

pytest-xdist gives a test that took its worker along to the next worker, again and again; leaves a worker that replaced
another with a single test, which it does not run before it has a second; and loses the tests that it wants to give to
one which has not collected yet (read in 3.5 to 3.8). Such a run loses tests, or never ends. It can go when
pytest-xdist's own schedulers survive ``tests/plugin/test_scope_schedulers.py``.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Generator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_regional._reporting import ATTRIBUTE
from pytest_regional._retirement import Retirement, is_retired, keep_tests_of_retired_workers, teardown_errors
from pytest_regional._waiting import waiting_for

if TYPE_CHECKING:
    from pytest_regional._session import RegionalSession


def starts_workers(config: pytest.Config) -> bool:
    """Return whether this process starts workers of pytest-xdist, which run the tests: itself it needs no torch."""
    return not hasattr(config, "workerinput") and getattr(config.option, "dist", "no") != "no"


class WorkerHooks:
    """Hooks of the process that starts the workers.

    Attributes:
        lost: how many workers died: the facts of their last tests may be missing from the totals.
    """

    def __init__(self, session: RegionalSession) -> None:
        self.lost = 0
        self._session = session
        self._errors = session.errors
        self._places: dict[str, int] = {}
        self._retirement = Retirement(session.config, session.scratch_dir)
        self._until_collected = contextlib.ExitStack()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give all workers one seed of fuzz tests, and each its own place."""
        node.workerinput["regional_fuzz_seed"] = self._session.fuzz_seed
        with self._errors.kept(f"giving worker {node.gateway.id} its own GPU"):
            if not self._places:
                self._until_collected.enter_context(waiting_for("workers import torch and collect tests"))
            place = self._places[node.gateway.id] = free_place(self._places.values())
            if there_is_a_choice(os.environ):
                # The worker's input reaches it after conftest files may have imported torch, too late for its GPU.
                node.gateway.remote_exec(f"import os; os.environ[{PLACE_VARIABLE!r}] = '{place}'").waitclose(60)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """Wait no more for workers: the first one has collected its tests."""
        with self._errors.kept("noting that workers run tests"):
            self._until_collected.close()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Count xdist workers that died: their last test's facts are missing from the totals."""
        with self._errors.kept(f"putting away what belongs to worker {node.gateway.id}"):
            self._until_collected.close()
            note = self._retirement.of_worker(node)
            self.lost += error is not None and note is None
            if note is not None:
                self._replace_retired(node, note)
            self._errors.add(getattr(node, "workeroutput", {}).get(ATTRIBUTE, ()), node.gateway.id)
            self._places.pop(node.gateway.id, None)

    def _replace_retired(self, node: Any, note: dict[str, Any]) -> None:
        """Print why a worker was retired, and do not count it as one that died."""
        allow_one_more(self._session.config)
        config = self._session.config
        terminal = config.pluginmanager.getplugin("terminalreporter")
        if terminal is not None:
            terminal.write_line(f"\nregional: worker {node.gateway.id} is retired: {note['because']}")
        for report in teardown_errors(note, node):
            config.hook.pytest_runtest_logreport(report=report)

    @pytest.hookimpl(optionalhook=True, wrapper=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Generator[None, Any, Any]:
        """Run each test once, also where workers die or are retired, and tests go to workers in groups.

        A scheduler of the user's stays; pytest-xdist's own for groups are replaced.
        """
        scheduler = yield
        if type(scheduler).__module__.startswith("xdist."):
            scheduler = scheduler_for(config, log) or scheduler
        if scheduler is not None:
            keep_tests_of_retired_workers(scheduler)
        return scheduler

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        """Do not count workers crashed by a test towards --max-worker-restart."""
        with self._errors.kept(f"counting the worker that died in {crashitem}"):
            allow_one_more(sched.config)


#: Those that give tests to workers in groups.
DISTRIBUTIONS = ("loadfile", "loadgroup", "loadscope")


def scheduler_for(config: Any, log: Any) -> Any:
    """Return pytest-xdist's scheduler for ``--dist``, fixed; ``None`` for a distribution that needs no fix."""
    distribution = config.getvalue("dist")
    if distribution == "each":
        return _fixed_each()(config, log)
    return _fixed(distribution)(config, log) if distribution in DISTRIBUTIONS else None


@cache
def _fixed(distribution: str) -> type[Any]:
    from xdist import scheduler  # type: ignore[import-untyped]

    bases: dict[str, type[Any]] = {
        "loadfile": scheduler.LoadFileScheduling,
        "loadgroup": scheduler.LoadGroupScheduling,
        "loadscope": scheduler.LoadScopeScheduling,
    }
    base = bases[distribution]

    class Fixed(base):  # type: ignore[misc, valid-type]
        """Reruns no test that crashed its worker; gives no worker a single test, and none before it has collected."""

        def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
            """Note what a worker has collected; a replacement that collects other tests is shut down."""
            super().add_node_collection(node, collection)
            if node not in self.registered_collections:
                node.shutdown()

        def remove_node(self, node: Any) -> str | None:
            """Take back what a worker has not run, except the test that it died in, which is returned.

            One that was retired died in none.
            """
            if self.collection is None:
                self.registered_collections.pop(node, None)  # the one that replaces it has yet to collect
            workload: dict[str, dict[str, bool]] = self.assigned_work.pop(node)
            left = {scope: unit for scope, unit in workload.items() if not all(unit.values())}
            if not left:
                return None
            first = next(iter(left.values()))
            crashed = next(test for test, completed in first.items() if not completed)
            ended = is_retired(node)
            first[crashed] = not ended
            self.workqueue.update({scope: unit for scope, unit in left.items() if not all(unit.values())})
            for living in self.assigned_work:
                self._reschedule(living)
            return None if ended else crashed

        def _reschedule(self, node: Any) -> None:
            """Give a worker more, until it has two tests or is being shut down."""
            if node not in self.registered_collections:
                return  # it replaces a dead one and has not collected yet
            super()._reschedule(node)
            while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
                super()._reschedule(node)

    return Fixed


@cache
def _fixed_each() -> type[Any]:
    from xdist import scheduler

    class FixedEach(scheduler.EachScheduling):  # type: ignore[misc]
        """A worker that replaced another may be replaced again, and several at once."""

        def remove_node(self, node: Any) -> str | None:
            """Keep what a worker has not run for its replacement, with the test that it did not begin."""
            if self.node2collection:
                self.node2collection.setdefault(node, next(iter(self.node2collection.values())))
            crashed: str | None = super().remove_node(node)
            if crashed is None or not is_retired(node):
                return crashed
            self._removed2pending.setdefault(node, []).insert(0, self.node2collection[node].index(crashed))
            return None

        def schedule(self) -> None:
            """Send tests to workers that have collected."""
            late = [node for node, tests in self.node2pending.items() if not tests and node not in self.node2collection]
            for node in late:
                del self.node2pending[node]
            super().schedule()
            self.node2pending.update((node, []) for node in late)

    return FixedEach


def allow_one_more(config: pytest.Config) -> None:
    """Do not count the worker that just died in a test, unless ``--max-worker-restart`` says how many may.

    By default pytest-xdist gives a run up when four times as many workers have died as there are, so that workers which
    die while they collect do not begin for ever. A worker that dies in a test takes that test along, so there is an end
    to it; and the other tests should still run. The number is a private attribute of pytest-xdist's
    session (3.5 to 3.8); where there is none, its own limit holds.
    """
    session = config.pluginmanager.getplugin("dsession")
    most = getattr(session, "_max_worker_restart", None)
    if config.option.maxworkerrestart is None and isinstance(most, int):
        session._max_worker_restart = most + 1


VARIABLE = "CUDA_VISIBLE_DEVICES"
PLACE_VARIABLE = "PYTEST_REGIONAL_WORKER_PLACE"
CHOICES = ("one", "all")


def free_place(taken: Collection[int]) -> int:
    """Return the least place that no living worker has."""
    return next(place for place in range(len(taken) + 1) if place not in taken)


def there_is_a_choice(environ: Mapping[str, str], devices: Path = Path("/dev")) -> bool:
    """Tell whether the caller lets the run see several GPUs."""
    return len(_visible(environ.get(VARIABLE), devices)) > 1


def for_worker(environ: Mapping[str, str], devices: Path = Path("/dev")) -> str | None:
    """Return what ``CUDA_VISIBLE_DEVICES`` has to be in this worker, or ``None`` where it stays as it is.

    Numbers, UUIDs of GPUs and those of MIG instances are passed on as the caller wrote them. Workers that outnumber the
    GPUs take turns. One that replaces a dead worker has a new name and the dead one's place, and so its GPU.

    Args:
        environ: of the worker, with pytest-xdist's variables and ``PLACE_VARIABLE``, which the controller sets.
        devices: the folder of device files, which are counted where the caller chose nothing.
    """
    worker = re.fullmatch(r"gw(\d+)", environ.get("PYTEST_XDIST_WORKER", ""))
    visible = _visible(environ.get(VARIABLE), devices)
    if worker is None or len(visible) < 2:
        return None
    return visible[int(environ.get(PLACE_VARIABLE) or worker[1]) % len(visible)]


def _visible(chosen: str | None, devices: Path) -> list[str]:
    if chosen is None:
        count = sum(1 for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
        return [str(number) for number in range(count)]
    names = [name.strip() for name in chosen.split(",")]
    # CUDA uses the names before the first one that it does not know; "-1" means none.
    stop = next((place for place, name in enumerate(names) if name in ("", "-1")), len(names))
    return names[:stop]
