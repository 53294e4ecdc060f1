"""The report of this run: its facts, where and with what it ran, and what remains of a run or process that dies.

Each process has a heartbeat file, from which the process with the terminal reads what a worker ran that died. Reports
say that the run is unfinished until it is over.
"""

from __future__ import annotations

import contextlib
import html
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pytest_regional._base.files import dumps
from pytest_regional._torch.cpp import described_processor
from pytest_regional.report.document import RunReport
from pytest_regional.report.facts import Facts, read, within_repository
from pytest_regional.report.outputs import ending_of, write_report

if TYPE_CHECKING:
    import pytest

    from pytest_regional.plugin.settings import Settings


_PACKAGES = ("pytest-regional", "torch", "triton", "pytest", "pytest-xdist", "hypothesis")


def report_of(
    settings: Settings,
    root: Path,
    facts: Sequence[Facts],
    goldens: Sequence[Mapping[str, str]],
    lost_workers: int,
    unfinished: str = "",
) -> RunReport:
    """Return the report of this run."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    # What the processor calls itself, where Linux says it.
    model = (line.partition(":")[2].strip() for line in described_processor() if line.startswith("model name"))
    tests = []
    for fact in facts:
        findings = []
        # With the scripts of its findings: a report shows them where their files are not.
        for finding in (fact["fuzz"] or {}).get("findings", ()):
            script = Path(finding["script"])
            text = script.read_text(encoding="utf-8") if script.is_file() else ""
            findings.append({**finding, "text": text, "file": within_repository(script, root)})
        tests.append({**fact, "fuzz": {**fact["fuzz"], "findings": findings}} if fact["fuzz"] else fact)
    return RunReport(
        created=_now(),
        versions=versions,
        machine={
            "system": platform.platform(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "model": next(model, ""),
        },
        options={
            "backends": list(settings.backends),
            "devices": list(settings.devices),
            "seed": settings.seed,
            "audit": settings.audit,
        },
        tests=tests,
        lost_workers=lost_workers,
        unfinished=unfinished,
        goldens=list(goldens),
    )


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


class CollectedFacts:
    """Facts by test. A test has some from its setup on, so that one that takes its process with it is known too."""

    def __init__(self) -> None:
        self._by_test: dict[str, Facts] = {}
        self._ended: set[str] = set()

    def note(self, report: pytest.TestReport) -> None:
        """Take what rides on ``report``, of whatever phase, from whatever process."""
        if report.when == "teardown":
            self._ended.add(report.nodeid)
        elif report.when == "setup":
            self._ended.discard(report.nodeid)
        fact = read(report)
        if fact is not None:
            if report.when == "call" or report.outcome != "passed":
                self._by_test[report.nodeid] = fact
            elif report.when == "setup":
                fact["outcome"] = "not finished"
                self._by_test[report.nodeid] = fact
        # What pytest-xdist reports in place of a worker that died has no facts, and no phase of pytest's.
        elif report.when not in ("setup", "call", "teardown") and report.outcome == "failed":
            crash: dict[str, Any] = getattr(report, CRASH, {})
            # One that crashed in its setup has the facts of the heartbeat: before that nothing was reported.
            known = self._by_test.get(report.nodeid) or crash.get("facts")
            if known is not None and (crash or report.nodeid not in self._ended):
                phase = {"phase": crash["phase"]} if crash.get("phase") else {}
                said = f"{report.longrepr}\nin its {crash['phase']}" if phase else str(report.longrepr)
                crashed = {**known, "outcome": "crashed", "failure": said, "message": said, **phase}
                self._by_test[report.nodeid] = cast("Facts", crashed)

    def process_ends(self) -> None:
        """Take what has begun, in this process, for what ends with it."""
        for fact in self._by_test.values():
            if fact["outcome"] == "not finished":
                fact["outcome"] = "crashed"

    def of(self, test: str) -> Facts | None:
        """Return the facts of the test with that id, if it is a marked one that began."""
        return self._by_test.get(test)

    @property
    def facts(self) -> list[Facts]:
        """All facts, in the order in which the tests began."""
        return list(self._by_test.values())


#: The attribute, of a report of a worker that died, with its last heartbeat.
CRASH = "regional_crash"


class Heartbeat:
    """The heartbeat file of one process: which test it runs, in which phase, or ran when it died."""

    def __init__(self, scratch_dir: Path, process: str) -> None:
        scratch_dir.mkdir(exist_ok=True)
        self._path = _heartbeat_file(scratch_dir, process)
        self._known: dict[str, Any] = {}
        self._length = 0

    def begin(self, test: str, facts: dict[str, Any]) -> None:
        """Take ``test`` for the one that runs; ``facts`` is what is known before it does."""
        self._known = {"test": test, "began": time.time(), "facts": facts}

    def phase(self, phase: str) -> None:
        """Write that the test is in ``phase``."""
        self._write({**self._known, "phase": phase})

    def end(self) -> None:
        """Write that no test runs."""
        if self._known:
            self._known = {}
            self._write({})

    def _write(self, known: dict[str, Any]) -> None:
        data = dumps(known).encode()
        # Over what is there, with blanks to its end: a file that is emptied first costs a test 6 ms, as file systems
        # bring what replaces it to the disk at once (ext4's auto_da_alloc).
        self._length = max(self._length, len(data))
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, data.ljust(self._length))
        finally:
            os.close(file)


def last_heartbeat(scratch_dir: Path, process: str) -> dict[str, Any] | None:
    """Remove the heartbeat file of a process that is gone; return ``test``, ``phase`` and ``facts`` of what it ran.

    ``None`` where it ran no test, or died while it wrote.
    """
    path = _heartbeat_file(scratch_dir, process)
    try:
        known = cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        known = {}
    path.unlink(missing_ok=True)
    return known or None


def _heartbeat_file(scratch_dir: Path, process: str) -> Path:
    return scratch_dir / f"heartbeat-{process}.json"


#: Tests that are named.
_NAMED = 8

_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="color-scheme" content="light dark"><title>Unfinished</title></head>
<body><h1>Regional conformance</h1><p>{}.</p></body>
</html>
"""


class UnfinishedReports:
    """The files of a run that goes on."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._began = _now()
        self._running: dict[str, None] = {}

    @property
    def running(self) -> str:
        """The tests that run now, in words; empty where none does."""
        names = list(self._running)
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return ", ".join(names[:_NAMED]) + more

    def test_begins(self, test: str) -> None:
        """Note that ``test`` runs."""
        self._running[test] = None
        self.write()

    def test_is_over(self, test: str) -> None:
        """Note that ``test`` runs no more; the files say so when the next one begins."""
        self._running.pop(test, None)

    def write(self) -> None:
        """Write the files, whose folders are made."""
        doing = f"while it ran {self.running}" if self._running else "before its first test, or between two"
        said = f"the run that began at {self._began} did not end, or has not yet; it was last heard of {doing}"
        sentence = f"{said[0].upper()}{said[1:]}"
        for path in self._paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            ending = ending_of(path)
            if ending == ".json":
                write_report(RunReport(self._began, {}, {}, {}, [], unfinished=said), path)
            elif ending in (".html", ".md"):
                text = _PAGE.format(html.escape(sentence)) if ending == ".html" else f"{sentence}\n"
                path.write_text(text, encoding="utf-8", errors="backslashreplace")
            else:
                # What is uploaded is complete or not there: an alert that is missing in it counts as fixed.
                path.unlink(missing_ok=True)
