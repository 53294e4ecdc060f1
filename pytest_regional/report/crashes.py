"""In what phase a test was when its process died: each process notes it in a file, which stays where it dies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from pytest_regional._json import dumps

#: What a report of a worker that died is given: what :func:`last_phase` returns.
CRASH = "regional_crash"


class PhaseNote:
    """The note of one process.

    Args:
        notes: the folder of notes, which is made.
        process: what tells this process from others of the run.
    """

    def __init__(self, notes: Path, process: str) -> None:
        notes.mkdir(exist_ok=True)
        self._path = _path(notes, process)
        self._known: dict[str, Any] = {}

    def begin(self, test: str, facts: dict[str, Any]) -> None:
        """Take ``test`` for the one that runs, of which nothing is known yet but ``facts``."""
        self._known = {"test": test, "facts": facts}

    def phase(self, phase: str) -> None:
        """Note that the test is in ``phase``."""
        self._path.parent.mkdir(parents=True, exist_ok=True)  # a test, on any worker, may have removed it
        self._path.write_text(dumps({**self._known, "phase": phase}), encoding="utf-8")


def last_phase(notes: Path, process: str) -> dict[str, Any] | None:
    """Return ``test``, ``phase`` and ``facts`` of the last test that ``process`` noted; ``None`` for none."""
    try:
        return cast("dict[str, Any]", json.loads(_path(notes, process).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None  # it died before its first test, or while it wrote


def _path(notes: Path, process: str) -> Path:
    return notes / f"phase-{process}.json"


__all__ = ["CRASH", "PhaseNote", "last_phase"]
