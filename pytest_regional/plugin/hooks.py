"""The hooks of a run with a backend under test, and those that collect facts and write the reports of the run.

Imports no torch: the process that starts the workers of pytest-xdist runs no tests, and starts sooner without it.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_regional._base.limits import noted_interrupts
from pytest_regional._base.stash import SESSION
from pytest_regional.harness.kernel_store.files import KernelFiles
from pytest_regional.plugin.collection import module_of
from pytest_regional.plugin.endings import EndingHooks
from pytest_regional.plugin.evidence import Evidence
from pytest_regional.plugin.goldens import GoldenHooks
from pytest_regional.plugin.phases import PhaseHooks
from pytest_regional.plugin.session import RegionalSession
from pytest_regional.plugin.settings import resolve
from pytest_regional.plugin.workers import ATTRIBUTE, WorkerHooks, starts_workers
from pytest_regional.plugin.written import RunOutputs
from pytest_regional.report import junit, terminal
from pytest_regional.report.this_run import CollectedFacts


def hooks_of_a_run(config: pytest.Config) -> Iterator[tuple[str, object]]:
    """Yield names and objects of the hooks of a run with a backend under test.

    pytest calls those that are registered later first: a wrapper is around all that stand above it.
    """
    session = config.stash[SESSION] = RegionalSession(config, resolve(config))
    endings, workers = EndingHooks(session), WorkerHooks(session)
    goldens = GoldenHooks(session, endings, workers)
    evidence = Evidence(session)
    # The facts and reports of the run.
    yield "regional-session", RunHooks(session, endings, workers, goldens, evidence)
    if not starts_workers(config):
        from pytest_regional.plugin.running import MarkedTestHooks

        # The harness of each marked test, checks at its end, its facts.
        yield "regional-tests", MarkedTestHooks(session, evidence)
    # Goldens: which are used, and writing them.
    yield "regional-goldens", goldens
    # Workers of pytest-xdist: seeds, GPUs, replacements, reports that cannot be sent.
    yield "regional-workers", workers
    # Limits on setup, call and teardown, and the heartbeat file that a crash leaves.
    yield "regional-phases", PhaseHooks(session)
    # Ends of the run before its time: signals, os._exit, forks.
    yield "regional-endings", endings


class RunHooks:
    """Registered only while a backend is under test: without one, the plugin costs no fixture and no hook."""

    def __init__(
        self,
        session: RegionalSession,
        endings: EndingHooks,
        workers: WorkerHooks,
        goldens: GoldenHooks,
        evidence: Evidence,
    ) -> None:
        self._session = session
        self._endings = endings
        self._workers = workers
        self._errors = session.errors
        self._collected = CollectedFacts()
        self._goldens = goldens
        self._outputs = RunOutputs(session, self._collected, endings, workers, evidence, goldens)
        endings.write_reports = self._leave_reports
        self._began = time.time()

    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
        """Give the tests of an installed package ids of their own."""
        return module_of(module_path, parent)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect facts, and errors of workers, on the process that writes the summary; say how to run a test again.

        First, so that whatever shows the report shows that as well.
        """
        with self._errors.kept(f"reading the facts of {report.nodeid} ({report.when})"):
            node = getattr(report, "node", None)
            self._errors.add(getattr(report, ATTRIBUTE, ()), "" if node is None else str(node.gateway.id))
            self._collected.note(report)
            if not hasattr(self._session.config, "workerinput"):
                self._outputs.add_rerun(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write what a run leaves; Ctrl-C takes effect when it is written."""
        with noted_interrupts(raised=False) as interrupted:
            self._finish(session)
        if interrupted:
            session.exitstatus = pytest.ExitCode.INTERRUPTED

    def _finish(self, session: pytest.Session) -> None:
        """Write goldens, the report, and totals to the JUnit file, in the process that has the facts of all workers.

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
        self._goldens.finish()
        self._outputs.write()
        if self._outputs:
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def _leave_reports(self) -> None:
        """Write the reports in a process that ends in a test."""
        self._collected.process_ends()
        self._outputs.write()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Write the conformance table, and what went wrong with reporting, for which the run fails."""
        found = self._collected.facts
        with self._errors.kept("writing the table"):
            given = (("-m", self._session.config.option.markexpr), ("-k", self._session.config.option.keyword))
            chosen = " ".join(f"{option} {shlex.quote(value)}" for option, value in given if value)
            terminal.write(terminalreporter, found, self._workers.lost, chosen)
        with self._errors.kept("writing the table of fuzzing"):
            terminal.write_fuzzing(terminalreporter, found, self._session.settings.findings, self._began)
        with self._errors.kept("writing annotations"):
            self._outputs.print(terminalreporter)
        if self._errors:
            self._errors.write(terminalreporter)
            session = self._pytest_session
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
