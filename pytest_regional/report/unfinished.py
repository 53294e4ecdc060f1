"""What the files of a report hold while the run goes on: that it has not ended, and which tests it runs.

A process that is killed writes nothing more. So the report of an earlier run is replaced when the next one begins.
``compare`` and ``merge`` refuse such a file.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from pytest_regional.report.document import RunReport

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
        self._paths = paths
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
            if path.suffix == ".json":
                RunReport(self._began, {}, {}, {}, [], unfinished=said).write(path)
            else:
                text = _PAGE.format(html.escape(said[0].upper() + said[1:]))
                path.write_text(text, encoding="utf-8", errors="backslashreplace")


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
