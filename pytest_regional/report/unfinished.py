"""Runs and processes that may die: what they were doing is in files that they leave.

Each process has a heartbeat file, from which the process with the terminal reads what a worker ran that died. Reports
say that the run is unfinished until it is over.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pytest_regional._files import dumps

if TYPE_CHECKING:
    pass
import html
from collections.abc import Sequence
from datetime import datetime, timezone

from pytest_regional.report.document import RunReport
from pytest_regional.report.outputs import ending_of

#: The attribute, of a report of a worker that died, with its last heartbeat.
CRASH = "regional_crash"


class Heartbeat:
    """The heartbeat file of one process: which test it runs, in which phase. A process that dies leaves its last one.

    Args:
        scratch_dir: the directory of such files, which is made.
        process: what distinguishes this process from others of the run.
    """

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
    """The files of a run that goes on.

    Args:
        paths: where the run's reports will be written.
    """

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
        """Note that ``test`` runs.

        Raises:
            OSError: a file cannot be written.
        """
        self._running[test] = None
        self.write()

    def test_is_over(self, test: str) -> None:
        """Note that ``test`` runs no more; the files say so when the next one begins."""
        self._running.pop(test, None)

    def write(self) -> None:
        """Write the files, whose folders are made.

        Raises:
            OSError: a file cannot be written.
        """
        doing = f"while it ran {self.running}" if self._running else "before its first test, or between two"
        said = f"the run that began at {self._began} did not end, or has not yet; it was last heard of {doing}"
        for path in self._paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            ending = ending_of(path)
            if ending == ".json":
                RunReport(self._began, {}, {}, {}, [], unfinished=said).write(path)
            elif ending == ".md":
                path.write_text(f"{said[0].upper()}{said[1:]}\n", encoding="utf-8", errors="backslashreplace")
            elif ending != ".html":
                # What is uploaded is complete or not there: an alert that is missing in it counts as fixed.
                path.unlink(missing_ok=True)
            else:
                text = _PAGE.format(html.escape(said[0].upper() + said[1:]))
                path.write_text(text, encoding="utf-8", errors="backslashreplace")


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
