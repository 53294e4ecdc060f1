"""Hooks of an active run: isolation around a marked test, the checks at its end, the totals."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import time
import unittest
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_regional import _hypothesis, _xdist
from pytest_regional._phases import limits_of, stderr_of
from pytest_regional._poisoned import Poison, PoisonedProcessError, keep_tests_of_ended_workers, teardown_errors
from pytest_regional._reporting import ATTRIBUTE
from pytest_regional._stash import FUZZ, HARNESS, TARGET
from pytest_regional.harness.kernel_store.files import KernelFiles
from pytest_regional.report import junit, progress, terminal
from pytest_regional.report.progress import RunningNote
from pytest_regional.report.this_run import CollectedFacts, report_of, write_report

if TYPE_CHECKING:
    from pytest_regional._endings import EndingHooks
    from pytest_regional._session import RegionalSession
    from pytest_regional.harness.regional import Regional
    from pytest_regional.report.document import RunReport


class RunHooks:
    """Registered only while a backend is under test, so that an inactive plugin costs no fixture and no hook."""

    def __init__(self, session: RegionalSession, endings: EndingHooks) -> None:
        self._session = session
        self._endings = endings
        endings.write_reports = self._leave_reports
        self._errors = session.errors
        self._collected = CollectedFacts()
        self._lost_workers = 0
        self._places: dict[str, int] = {}
        self._unwritten: list[str] = []
        self._began = time.time()
        self._poison = Poison(session.config, session.folder_of_notes)
        self._note = RunningNote(session.folder_of_notes, session.process)

    @pytest.fixture(autouse=True)
    def _regional_isolation(self, request: pytest.FixtureRequest) -> Iterator[Any]:
        """Isolate and observe a marked test, whether or not it asks for ``regional``."""
        if TARGET not in request.node.stash:
            yield None
            return
        from pytest_regional.harness.isolation.interpreter import write_faults_to

        write_faults_to(stderr_of(request.config))
        with self._session.running(request.node) as regional:
            yield regional
        self._check_poison(request.node, regional)

    def _check_poison(self, item: pytest.Item, regional: Regional) -> None:
        """Have the process end, or the test fail, that left what cannot be put back."""
        __tracebackhide__ = True
        for_good = [leak for leak in regional.leaks if leak.poisons]
        problem = ""
        if for_good:
            try:
                self._session.warn_of_leak(f"{item.nodeid} {self._poison.taken(item.nodeid, for_good)}")
            except PoisonedProcessError as error:
                problem = f"{type(error).__name__}: {error}"
        if problem:
            pytest.fail(problem, pytrace=False)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Keep PyTorch's structured trace out of pytest's log capture while a marked test runs, and note the test.

        A process that cannot be trusted any more ends before its next test.
        """
        self._poison.leave_before(item)
        if TARGET not in item.stash:
            return (yield)
        from pytest_regional._torch.process_state import structured_trace_off

        with (
            self._errors.around("keeping PyTorch's structured trace out of the log", structured_trace_off),
            self._errors.around("noting which test runs", lambda: self._note.about(item.nodeid)),
        ):
            result = yield
        # No limit is on between tests, and one that a test left would end the process in another.
        faulthandler.cancel_dump_traceback_later()
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """Say which tests take long, and how far campaigns are, of xdist workers too, where the terminal is."""
        if not session.config.pluginmanager.has_plugin("terminalreporter"):
            return (yield)

        def lines() -> progress.ProgressLines:
            return progress.ProgressLines(self._session.folder_of_notes, progress.EVERY)

        with self._errors.around("writing lines about tests that take long", lines):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Ask the device whether it does for a marked test, before pytest looks at the test's skips."""
        if TARGET in item.stash:
            self._session.begin(item)
            self._session.ask_the_device(item)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Fail a marked test that proved nothing."""
        target = item.stash.get(TARGET, None)
        regional = item.stash.get(HARNESS, None)
        if target is None or regional is None:
            return (yield)
        from pytest_regional.harness.devices.emulated import skipping_unsupported

        __tracebackhide__ = True
        with (
            _located_skips(),
            skipping_unsupported(regional, _skip),
            _hypothesis.adapted(item, regional, self._session.settings.examples, limits_of(item).time),
        ):
            result = yield
        _check_fuzzed(item)
        _check_end(regional, vacuity=target.mark.expects_regions and not _failed_inside_unittest(item))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect facts, and errors of workers, on the process that writes the summary."""
        with self._errors.kept(f"reading the facts of {report.nodeid} ({report.when})"):
            self._errors.add(getattr(report, ATTRIBUTE, ()), _process_of(report))
            self._collected.note(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Have all xdist workers draw programs from one seed, and tell each which place is its own."""
        node.workerinput["regional_fuzz_seed"] = self._session.fuzz_seed
        with self._errors.kept(f"giving worker {node.gateway.id} a GPU of its own"):
            place = self._places[node.gateway.id] = _xdist.free_place(self._places.values())
            if _xdist.there_is_a_choice(os.environ):
                # The worker's input reaches it after conftest files may have imported torch, too late for its GPU.
                node.gateway.remote_exec(f"import os; os.environ[{_xdist.PLACE_VARIABLE!r}] = '{place}'").waitclose(60)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Count xdist workers that died: their last test's facts are missing from the totals."""
        with self._errors.kept(f"putting away what belongs to worker {node.gateway.id}"):
            ended = self._poison.of_worker(node)
            self._lost_workers += error is not None and ended is None
            if ended is not None:
                self._replace_ended(node, ended)
            self._errors.add(getattr(node, "workeroutput", {}).get(ATTRIBUTE, ()), node.gateway.id)
            self._places.pop(node.gateway.id, None)
            RunningNote(self._session.folder_of_notes, node.gateway.id).forget()

    def _replace_ended(self, node: Any, ended: dict[str, Any]) -> None:
        """Say why a worker ended on purpose, and do not count it as one that died."""
        _xdist.allow_one_more(self._session.config)
        config = self._session.config
        terminal = config.pluginmanager.getplugin("terminalreporter")
        if terminal is not None:
            terminal.write_line(f"\nregional: worker {node.gateway.id} ends on purpose: {ended['because']}")
        for report in teardown_errors(ended, node):
            config.hook.pytest_runtest_logreport(report=report)

    @pytest.hookimpl(optionalhook=True, wrapper=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Generator[None, Any, Any]:
        """Have each test run once, also where workers die, or end, and tests go to workers in groups.

        A scheduler of the user's stays, pytest-xdist's own for groups do not.
        """
        scheduler = yield
        if type(scheduler).__module__.startswith("xdist."):
            scheduler = _xdist.scheduler_for(config, log) or scheduler
        if scheduler is not None:
            keep_tests_of_ended_workers(scheduler)
        return scheduler

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        """Let pytest-xdist replace a worker that a test took along, however many there were."""
        with self._errors.kept(f"counting the worker that died in {crashitem}"):
            _xdist.allow_one_more(sched.config)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the report, and totals to the JUnit file, in the process that has the facts of all workers.

        It also brings the store of compiled kernels back to its size.
        """
        self._pytest_session = session
        with self._errors.kept("settling whether the run is at its end"):
            self._endings.run_is_over(session)
        with self._errors.kept("adding totals to the JUnit file"):
            junit.add_to_run(session.config, self._collected.facts)
        if hasattr(session.config, "workerinput"):
            session.config.workeroutput[ATTRIBUTE] = self._errors.taken()  # type: ignore[attr-defined]
            return
        with self._errors.kept("bringing the store of compiled kernels back to its size"):
            if self._session.settings.kernel_store:
                KernelFiles(self._session.settings.kernel_store).prune()
        self._write_reports()
        if self._unwritten:
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def _leave_reports(self) -> None:
        """Write the reports in a process that ends in a test."""
        self._collected.process_ends()
        self._write_reports()

    def _write_reports(self) -> None:
        paths = self._session.settings.reports
        if not paths:
            return
        with self._errors.kept("writing the report"):
            facts, reason = self._collected.facts, self._endings.reason
            report = report_of(self._session.settings, facts, self._lost_workers, reason)
            for path in paths:
                with self._errors.kept(f"writing {path}"):
                    self._write_report(report, path)

    def _write_report(self, report: RunReport, path: Path) -> None:
        try:
            write_report(report, path)
        except OSError as error:
            self._unwritten.append(f"--regional-report: {path} could not be written: {error.strerror or error}")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Write the conformance table, and what went wrong with reporting, for which the run fails."""
        facts = self._collected.facts
        with self._errors.kept("writing the table"):
            terminal.write(terminalreporter, facts, self._lost_workers)
        with self._errors.kept("writing the table of fuzzing"):
            terminal.write_fuzzing(terminalreporter, facts, self._session.settings.findings, self._began)
        for line in self._unwritten:
            terminalreporter.write_line(line, red=True)
        if self._errors:
            self._errors.write(terminalreporter)
            session = self._pytest_session
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def _process_of(report: pytest.TestReport) -> str:
    """Return the xdist worker that a report came from; empty where there are none."""
    node = getattr(report, "node", None)
    return "" if node is None else str(node.gateway.id)


def _skip(reason: str) -> None:
    """Skip a test; pytest shows it at the test, not at this line."""
    __tracebackhide__ = True
    raise pytest.skip.Exception(reason, _use_item_location=True)


@contextlib.contextmanager
def _located_skips() -> Iterator[None]:
    """Have pytest show at the test what ``regional.require_device`` skips."""
    __tracebackhide__ = True
    reason = None
    try:
        yield
    except unittest.SkipTest as skip:
        reason = str(skip)
    if reason is not None:
        _skip(reason)


def _check_fuzzed(item: pytest.Item) -> None:
    """Fail a fuzz test that drew nothing: it would pass for ever."""
    __tracebackhide__ = True
    if FUZZ in item.stash and item.stash[FUZZ].result is None:
        pytest.fail("the test asks for regional_fuzz and runs no campaign: call regional_fuzz.run(mode)", pytrace=False)


def _check_end(regional: Regional, *, vacuity: bool) -> None:
    """Fail a test whose body passed without proving anything; no frame of the test is at fault, so none is shown."""
    from pytest_regional.harness.vacuity import BackendLeakError, FallbackError, VacuousTestError, check_backend_leaks

    problem = ""
    try:
        regional.check_fallbacks()
        check_backend_leaks(regional)
        if vacuity:
            regional.check_not_vacuous()
    except (BackendLeakError, FallbackError, VacuousTestError) as error:
        problem = f"{type(error).__name__}: {error}"
    if problem:
        pytest.fail(problem, pytrace=False)


def _failed_inside_unittest(item: pytest.Item) -> bool:
    """Unittest keeps a failure for itself; a complaint about vacuity must not hide it."""
    return bool(getattr(item, "_excinfo", None))
