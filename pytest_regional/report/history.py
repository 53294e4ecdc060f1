"""Compile times of earlier runs: a file with one line for each run, which ``--regional-report=FILE.jsonl`` appends to.

A line is a JSON table: ``version`` 1, ``created``, ``versions`` and ``machine`` as in a report, and ``tests``: of each
passed test ``test``, ``backend``, ``device`` and ``compile_times``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_regional._files import append_line, bytes_of, dumps
from pytest_regional.report.document import RunReport, key_of
from pytest_regional.report.reading import ReportError, check_line

#: Raised when the meaning of a line changes.
VERSION = 1

Key = tuple[str, str, str]


@dataclass(frozen=True)
class TimedRun:
    """What one run says of compile times.

    Attributes:
        created: when it ended, in UTC, as ISO 8601.
        versions: of packages, by name.
        machine: where it ran.
        tests: the ``compile_times`` of each passed test, by test, backend and device.
    """

    created: str
    versions: Mapping[str, str]
    machine: Mapping[str, Any]
    tests: Mapping[Key, Mapping[str, Any]]

    @staticmethod
    def of(report: RunReport) -> TimedRun:
        """Return what a report holds of it."""
        passed = [fact for fact in report.tests if fact["outcome"] == "passed" and "compile_times" in fact]
        tests = {key_of(fact): fact["compile_times"] for fact in passed}
        return TimedRun(report.created, report.versions, report.machine, tests)

    def on(self, clock: str) -> TimedRun:
        """Return the run with the times of one clock, of :data:`CLOCK_NAMES`, and the tests that have some.

        Runs of earlier versions have none on the CPU clock.
        """
        if clock == "wall":
            return self
        timed = {key: times for key, times in self.tests.items() if clock in times}
        tests = {key: {**times[clock], "not_measured": times["not_measured"]} for key, times in timed.items()}
        return replace(self, tests=tests)


def append(report: RunReport, path: Path) -> None:
    """Append a line for ``report``; none for a run that did not finish, or in which nothing was measured."""
    run = TimedRun.of(report)
    if report.unfinished or not run.tests:
        return
    tests = [
        {"test": test, "backend": backend, "device": device, "compile_times": times}
        for (test, backend, device), times in run.tests.items()
    ]
    about = {"version": VERSION, "created": run.created, "versions": run.versions, "machine": run.machine}
    append_line(path, dumps({**about, "tests": tests}).encode("utf-8", "backslashreplace"))


def read(path: Path) -> list[TimedRun]:
    """Return the runs in ``path``, the earliest first.

    Raises:
        ReportError: no file, or a line that is none of a history; names the line.
    """
    try:
        lines = bytes_of(path).splitlines()
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}") from error
    return [_run(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]


def _run(line: bytes, where: str) -> TimedRun:
    try:
        data = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{where} is not JSON: delete it if a run was killed there") from error
    if not isinstance(data, dict) or data.get("version") != VERSION:
        raise ReportError(f"{where} is of a format that this version does not know: it reads version {VERSION}")
    check_line(data, where)
    tests = {(one["test"], one["backend"], one["device"]): one["compile_times"] for one in data["tests"]}
    return TimedRun(data["created"], data["versions"], data["machine"], tests)
