"""Workers of pytest-xdist: GPUs, seeds, deaths, retirement; and failures of the plugin's own reporting.

A process in which a test left state that cannot be restored runs no further test. The worker reports that test as any
other. When its next test would begin it tears down the fixtures of modules and of the session, leaves a note for the
controller, and exits; the controller gives the test to another worker and starts a fresh one. A run without workers has
no other process: there the test that left the state fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from os import _exit  # before it is guarded
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from _pytest._io.saferepr import saferepr

from pytest_regional._base.errors import RegionalError
from pytest_regional._base.text import encodable

if TYPE_CHECKING:
    from pytest_regional.harness.isolation import Leak
    from pytest_regional.plugin.session import RegionalSession


def starts_workers(config: pytest.Config) -> bool:
    """Return whether this process starts the workers of pytest-xdist, and runs no test itself.

    The condition under which pytest-xdist registers its ``DSession`` (3.5 to 3.8), which may not be registered yet.
    """
    option = config.option
    return getattr(option, "dist", "no") != "no" and bool(option.tx) and not option.collectonly


class WorkerHooks:
    """Hooks of the process that starts the workers, and one of theirs.

    Attributes:
        lost: how many workers died: the facts of their last tests may be missing from the totals.
    """

    def __init__(self, session: RegionalSession) -> None:
        self.lost = 0
        self._session = session
        self._errors = session.errors
        self._places: dict[str, int] = {}
        self._retirement = Retirement(session.config, session.scratch_dir)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give all workers one seed of fuzz tests, and each its own place."""
        node.workerinput["regional_fuzz_seed"] = self._session.fuzz_seed
        with self._errors.kept(f"giving worker {node.gateway.id} its own GPU"):
            taken = self._places.values()
            # The least place that no living worker has.
            place = next(place for place in range(len(taken) + 1) if place not in taken)
            self._places[node.gateway.id] = place
            if len(visible_gpus(os.environ.get(VARIABLE))) > 1:
                # The worker's input reaches it after conftest files may have imported torch, too late for its GPU.
                node.gateway.remote_exec(f"import os; os.environ[{PLACE_VARIABLE!r}] = '{place}'").waitclose(60)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Count xdist workers that died: their last test's facts are missing from the totals.

        Of one that was retired print why, and report what failed when it tore its fixtures down, as an error of its
        last test.
        """
        config = self._session.config
        with self._errors.kept(f"putting away what belongs to worker {node.gateway.id}"):
            note = self._retirement.of_worker(node)
            self.lost += error is not None and note is None
            if note is not None:
                allow_one_more(config)
                terminal = config.pluginmanager.getplugin("terminalreporter")
                if terminal is not None:
                    terminal.write_line(f"\nregional: worker {node.gateway.id} is retired: {note['because']}")
                if note["error"]:
                    test, file = note["test"], note["test"].partition("::")[0]
                    report = pytest.TestReport(test, (file, None, file), {}, "failed", note["error"], "teardown")
                    report.node = node  # type: ignore[attr-defined]
                    config.hook.pytest_runtest_logreport(report=report)
            self._errors.add(getattr(node, "workeroutput", {}).get(ATTRIBUTE, ()), node.gateway.id)
            self._places.pop(node.gateway.id, None)

    @pytest.hookimpl(optionalhook=True, wrapper=True)
    def pytest_xdist_make_scheduler(self) -> Generator[None, Any, Any]:
        """Run each test once, also where workers die or are retired."""
        scheduler = yield
        if scheduler is not None:
            keep_tests(scheduler)
        return scheduler

    @pytest.hookimpl(optionalhook=True, wrapper=True, tryfirst=True)
    def pytest_report_to_serializable(self) -> Generator[None, Any, Any]:
        """Put texts in place of what a worker cannot send of a report: pytest-xdist would end the run."""
        data = yield
        if hasattr(self._session.config, "workerinput"):
            with self._errors.kept("sending a report"):
                data = _sendable(data)
        return data

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        """Do not count workers crashed by a test towards --max-worker-restart."""
        with self._errors.kept(f"counting the worker that died in {crashitem}"):
            allow_one_more(sched.config)


class UnrestorableStateError(RegionalError, AssertionError):
    """A test left state that cannot be restored, in the only process that there is."""


class Retirement:
    """Whether this process, and which workers, are retired."""

    def __init__(self, config: pytest.Config, scratch_dir: Path) -> None:
        self._config = config
        self._scratch_dir = scratch_dir
        self._test = self._because = ""

    def retire(self, test: str, leaks: Sequence[Leak]) -> str:
        """Retire this process after ``test``, which left ``leaks``; return what to warn of.

        Raises:
            UnrestorableStateError: no other process can run the rest.
        """
        what = "; ".join(leak.name for leak in leaks)
        if not hasattr(self._config, "workerinput") or self._config.option.maxworkerrestart is not None:
            raise UnrestorableStateError(
                f"{test} left state that cannot be restored: {what}. Later results of this process cannot be trusted; "
                f"with pytest-xdist (-n 1) the other tests would run in a new one"
            )
        if not self._because:
            self._test, self._because = test, f"{test} left {what}"
        return f"left state that cannot be restored: {what} (this worker is retired, and another runs the other tests)"

    def exit_before(self, item: pytest.Item) -> None:
        """Exit if this process is retired; another one runs ``item``.

        Fixtures of modules and of the session are torn down before, as pytest does after the last test.
        """
        if not self._because:
            return
        failure = ""
        try:
            item.session._setupstate.teardown_exact(None)
        except Exception:  # noqa: BLE001 - reported by the controller
            failure = traceback.format_exc()
        note = {"because": self._because, "test": self._test, "error": failure}
        path = self._note_of(self._config.workerinput["workerid"])  # type: ignore[attr-defined]
        path.write_text(json.dumps(note), encoding="utf-8")
        _exit(0)

    def _note_of(self, worker: str) -> Path:
        return self._scratch_dir / f"retired-{worker}.json"

    def of_worker(self, node: Any) -> dict[str, Any] | None:
        """Return why a worker that is gone was retired, and what went wrong with that; ``None`` if it was not."""
        path = self._note_of(node.gateway.id)
        if not path.exists():
            return None
        node.regional_retired = True
        note: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
        return note


def is_retired(node: Any) -> bool:
    """Return whether a worker that is gone ended by :meth:`Retirement.exit_before`."""
    return bool(getattr(node, "regional_retired", False))


def keep_tests(scheduler: Any) -> None:
    """Have a scheduler run each test once, also where workers die in tests, or are retired before them."""
    from xdist.scheduler import EachScheduling, LoadScopeScheduling  # type: ignore[import-untyped]

    if isinstance(scheduler, LoadScopeScheduling):
        _mend_scopes(scheduler)
    elif isinstance(scheduler, EachScheduling):
        _mend_each(scheduler)
    else:
        remove = scheduler.remove_node

        def remove_node(node: Any) -> str | None:
            test: str | None = remove(node)
            if test is None or not is_retired(node):
                return test
            scheduler.mark_test_pending(test)
            return None

        scheduler.remove_node = remove_node


def _mend_scopes(scheduler: Any) -> None:
    """Mend ``--dist loadscope``, ``loadfile`` and ``loadgroup`` of pytest-xdist (3.5 to 3.8).

    ``LoadScopeScheduling.remove_node`` puts the test that ended its worker back among those to run: it ends worker
    after worker. ``_reschedule`` gives the worker that replaces another one test, for which that waits, as it begins
    none before it knows the next; and loses the tests that it gives to a worker which has not collected yet.
    """
    remove, reschedule, collected = scheduler.remove_node, scheduler._reschedule, scheduler.registered_collections

    def remove_node(node: Any) -> str | None:
        if scheduler.collection is None:
            collected.pop(node, None)
        units = scheduler.assigned_work[node].values()
        left = [(unit, test) for unit in units for test in unit if not unit[test]]
        for unit, test in left[:1]:
            unit[test] = not is_retired(node)
        remove(node)
        return left[0][1] if left and not is_retired(node) else None

    def give_more(node: Any) -> None:
        if node in collected:
            reschedule(node)
            while not node.shutting_down and scheduler._pending_of(scheduler.assigned_work[node]) < 2:
                reschedule(node)

    scheduler.remove_node, scheduler._reschedule = remove_node, give_more


def _mend_each(scheduler: Any) -> None:
    """Mend ``--dist each`` of pytest-xdist (3.5 to 3.8).

    ``EachScheduling`` raises ``KeyError`` when a worker dies that replaced another (``remove_node``), and when one that
    replaced another is left nothing to run (``schedule``): it knows what the first workers collected alone.
    """
    remove, schedule = scheduler.remove_node, scheduler.schedule
    collected, pending = scheduler.node2collection, scheduler.node2pending

    def remove_node(node: Any) -> str | None:
        if pending[node]:
            collected.setdefault(node, next(iter(collected.values())))
        test: str | None = remove(node)
        if test is None or not is_retired(node):
            return test
        scheduler._removed2pending.setdefault(node, []).insert(0, collected[node].index(test))
        return None

    def schedule_collected() -> None:
        idle = {node: tests for node, tests in pending.items() if not tests and node not in collected}
        for node in idle:
            del pending[node]
        schedule()
        pending.update(idle)

    scheduler.remove_node, scheduler.schedule = remove_node, schedule_collected


def _sendable(value: Any) -> Any:
    """Return ``value`` with texts in place of all that cannot be sent to another process."""
    try:
        import execnet

        execnet.dumps(value)
    except Exception:  # noqa: BLE001 - a test's own object
        if type(value) is dict:
            return {_sendable(name): _sendable(one) for name, one in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(_sendable, value))
        return encodable(value if type(value) is str else saferepr(value))
    return value


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


def for_worker(environ: Mapping[str, str], devices: Path = Path("/dev")) -> str | None:
    """Return what ``CUDA_VISIBLE_DEVICES`` has to be in this worker, or ``None`` where it stays as it is.

    Numbers, UUIDs of GPUs and those of MIG instances are passed on as the caller wrote them. Workers that outnumber the
    GPUs take turns. One that replaces a dead worker has a new name and the dead one's place, and so its GPU.

    Args:
        environ: of the worker, with pytest-xdist's variables and ``PLACE_VARIABLE``, which the controller sets.
        devices: the folder of device files, which are counted where the caller chose nothing.
    """
    worker = re.fullmatch(r"gw(\d+)", environ.get("PYTEST_XDIST_WORKER", ""))
    visible = visible_gpus(environ.get(VARIABLE), devices)
    if worker is None or len(visible) < 2:
        return None
    return visible[int(environ.get(PLACE_VARIABLE) or worker[1]) % len(visible)]


def visible_gpus(chosen: str | None, devices: Path = Path("/dev")) -> list[str]:
    """Return the GPUs that a process sees, of which ``CUDA_VISIBLE_DEVICES`` may have ``chosen`` some."""
    if chosen is None:
        count = sum(1 for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
        return [str(number) for number in range(count)]
    names = [name.strip() for name in chosen.split(",")]
    # CUDA uses the names before the first one that it does not know; "-1" means none.
    stop = next((place for place, name in enumerate(names) if name in ("", "-1")), len(names))
    return names[:stop]


#: What the errors of a worker of pytest-xdist are called on its reports and in its output.
ATTRIBUTE = "regional_reporting_errors"


class ReportingError(NamedTuple):
    """One failure: what was being done, as it follows "while", and the traceback."""

    doing: str
    text: str


class ReportingErrors:
    """The failures of one process; the process with the terminal has those of its workers as well."""

    def __init__(self) -> None:
        self._errors: list[ReportingError] = []

    def __bool__(self) -> bool:
        return bool(self._errors)

    @contextlib.contextmanager
    def kept(self, doing: str) -> Iterator[None]:
        """Keep what the block raises and continue after it; an interrupt, and what ends a test, passes through."""
        try:
            yield
        except Exception:  # noqa: BLE001 - shown at the end of the run
            self._errors.append(ReportingError(encodable(doing), encodable(traceback.format_exc())))

    @contextlib.contextmanager
    def around(self, doing: str, context: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
        """Run the block inside what ``context`` returns; keep what making, entering and leaving that raise."""
        with contextlib.ExitStack() as stack:
            with self.kept(doing):
                stack.enter_context(context())
            try:
                yield
            finally:
                with self.kept(doing):
                    stack.close()

    def taken(self) -> list[list[str]]:
        """Return all errors as plain data that crosses processes, and forget them here."""
        taken, self._errors = self._errors, []
        return [list(error) for error in taken]

    def add(self, taken: Iterable[list[str]], process: str = "") -> None:
        """Add what another process has :meth:`taken`."""
        beside = f" (on {process})" if process else ""
        self._errors += [ReportingError(doing + beside, text) for doing, text in taken]

    def write(self, reporter: Any) -> None:
        """Write every error, those with the same traceback once, with pytest's terminal writer."""
        reporter.section("regional reporting errors", sep="=", red=True)
        reporter.write_line(
            "pytest-regional itself failed where it reports. Outcomes of tests are right; what is printed above, and "
            "written to reports, is not complete, so the run fails. Please report this, with what follows:"
        )
        while_doing: dict[str, list[str]] = {}
        for error in self._errors:
            while_doing.setdefault(error.text, []).append(error.doing)
        for text, doings in while_doing.items():
            more = f", and {len(doings) - 1} times more" if len(doings) > 1 else ""
            reporter.write_line(f"while {doings[0]}{more}:", red=True)
            reporter.write_line(text.rstrip())
