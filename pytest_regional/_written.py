"""What a run writes at its end: reports, directories of failed tests, and what the page of a CI service shows."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_regional._evidence import Evidence
from pytest_regional._rerun import RerunCommands, add_rerun
from pytest_regional.report import github
from pytest_regional.report.document import BAD, RunReport
from pytest_regional.report.facts import Facts
from pytest_regional.report.outputs import write_report
from pytest_regional.report.this_run import CollectedFacts, report_of

if TYPE_CHECKING:
    import pytest

    from pytest_regional._endings import EndingHooks
    from pytest_regional._goldens import GoldenHooks
    from pytest_regional._session import RegionalSession
    from pytest_regional._xdist import WorkerHooks


class RunOutputs:
    """Writes what ``--regional-report`` asks for, in the process that was started.

    Args:
        session: of this process.
        collected: the facts of all tests, as they come in.
        endings: knows whether the run finished.
        workers: knows how many died.
        evidence: of failed tests.
        goldens: knows which were used, written and found changed.
    """

    def __init__(
        self,
        session: RegionalSession,
        collected: CollectedFacts,
        endings: EndingHooks,
        workers: WorkerHooks,
        evidence: Evidence,
        goldens: GoldenHooks,
    ) -> None:
        self._session, self._collected = session, collected
        self._endings, self._workers, self._evidence = endings, workers, evidence
        self._goldens = goldens
        self._rerun = RerunCommands(session)
        self._unwritten: list[str] = []

    def __bool__(self) -> bool:
        """Whether something could not be written."""
        return bool(self._unwritten)

    def add_rerun(self, report: pytest.TestReport) -> None:
        """Add the command that runs a failed test again to its report."""
        fact = self._collected.of(report.nodeid) if report.failed else None
        if fact is None:
            return
        with self._session.errors.kept(f"adding how to run {report.nodeid} again"):
            add_rerun(report, self._rerun.of(fact))

    def _facts(self) -> list[Facts]:
        facts = self._collected.facts
        for fact in facts:
            if fact["outcome"] in BAD:
                fact["rerun"] = self._rerun.of(fact)
        return facts

    def _report(self) -> RunReport:
        root, lost = self._session.config.rootpath, self._workers.lost
        goldens = self._goldens.states()
        return report_of(self._session.settings, root, self._facts(), goldens, lost, self._endings.reason)

    def write(self) -> None:
        """Write all but what is printed."""
        outputs, errors = self._session.settings.reports, self._session.errors
        if not outputs:
            return
        with errors.kept("writing the report"):
            report = self._report()
            for path in outputs.files:
                with errors.kept(f"writing {path}"):
                    self._try(path, partial(write_report, report, path))
            for directory in outputs.directories:
                with errors.kept(f"writing {directory}"):
                    self._try(directory, lambda: self._evidence.write(report.tests))
            if outputs.github:
                with errors.kept("writing the summary of the job"):
                    name = os.environ.get("GITHUB_STEP_SUMMARY", "")
                    self._try(Path(name), lambda: github.append_summary(report, os.environ))

    def _try(self, path: Path, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            self._unwritten.append(f"--regional-report: {path} could not be written: {error.strerror or error}")

    def print(self, terminalreporter: Any) -> None:
        """Print annotations, and what could not be written."""
        if self._session.settings.reports.github:
            terminalreporter.ensure_newline()
            for line in github.annotations_of(self._facts()):
                terminalreporter.write_line(line)
        for line in self._unwritten:
            terminalreporter.write_line(line, red=True)
