"""In what phase a test was when its process died: each process notes it in a file, which stays where it dies."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

from pytest_regional._files import dumps

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
        self._length = 0

    def begin(self, test: str, facts: dict[str, Any]) -> None:
        """Take ``test`` for the one that runs, of which nothing is known yet but ``facts``."""
        self._known = {"test": test, "facts": facts}

    def phase(self, phase: str) -> None:
        """Note that the test is in ``phase``."""
        data = dumps({**self._known, "phase": phase}).encode()
        try:
            self._write(data)
        except FileNotFoundError:  # a test, on any worker, has removed the folder
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._write(data)

    def _write(self, data: bytes) -> None:
        # Over what is there, with blanks to its end: a file that is emptied first costs a test 6 ms, as file systems
        # bring what replaces it to the disk at once (ext4's auto_da_alloc).
        self._length = max(self._length, len(data))
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, data.ljust(self._length))
        finally:
            os.close(file)


def last_phase(notes: Path, process: str) -> dict[str, Any] | None:
    """Return ``test``, ``phase`` and ``facts`` of the last test that ``process`` noted; ``None`` for none."""
    try:
        return cast("dict[str, Any]", json.loads(_path(notes, process).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None  # it died before its first test, or while it wrote


def _path(notes: Path, process: str) -> Path:
    return notes / f"phase-{process}.json"


__all__ = ["CRASH", "PhaseNote", "last_phase"]
