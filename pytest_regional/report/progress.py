"""How far campaigns are, and which tests take long: each keeps a note, and the process with the terminal reads them.

Notes are files, so that campaigns of xdist workers show as well; a worker that dies leaves its last one.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from pytest_regional._files import dumps
from pytest_regional._private_folders import make_own_folder
from pytest_regional._text import plural
from pytest_regional.fuzz.budget import duration

if TYPE_CHECKING:
    from pytest_regional.fuzz.budget import Clock
    from pytest_regional.fuzz.campaign import CampaignResult

#: Seconds between two lines on the terminal: often enough to be believed, rare enough for the log of a night.
EVERY = 30.0

#: Seconds between two notes of one campaign, which may check hundreds of programs in them.
NOTED_EVERY = 1.0


class ProgressNote:
    """The note of one campaign.

    Args:
        path: its file.
        name: the test, as the line names it.
        unit: what it checks: programs or sequences.
    """

    def __init__(self, path: Path, name: str, unit: str = "program") -> None:
        self._path = path
        self._name = name
        self._unit = unit
        self._noted = 0.0

    def __call__(self, result: CampaignResult, clock: Clock) -> None:
        """Note how far the campaign is."""
        if time.monotonic() - self._noted < NOTED_EVERY:
            return
        self._noted = time.monotonic()
        spent, passed = plural(result.examples, self._unit), duration(clock.seconds)
        if clock.budget.examples is not None:
            spent = f"{result.examples} of {plural(clock.budget.examples, self._unit)}"
        else:
            passed += f" of {clock.budget}"
        found = plural(len(result.findings), "new finding")
        text = f"{self._name} {spent} in {passed}, {found}"
        beside = self._path.with_suffix(".new")
        make_own_folder(beside.parent)
        beside.write_text(dumps({"text": text}), encoding="utf-8")
        beside.replace(self._path)

    def close(self) -> None:
        """Take the note away: the campaign is over."""
        self._path.unlink(missing_ok=True)


class RunningNote:
    """The note of one process, which test it runs; a worker that dies leaves its last one.

    Args:
        notes: the folder of notes, which is made.
        process: what tells this process from others of the run.
    """

    def __init__(self, notes: Path, process: str) -> None:
        make_own_folder(notes)
        self._path = notes / f"running-{process}.json"

    def forget(self) -> None:
        """Take the note away."""
        self._path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def about(self, test: str) -> Iterator[None]:
        """Note that ``test`` runs, for as long as it does."""
        make_own_folder(self._path.parent)  # a test, on any worker, may have removed it
        self._path.write_text(dumps({"test": test, "began": time.time()}), encoding="utf-8")
        try:
            yield
        finally:
            self.forget()


class ProgressLines:
    """Writes a line to the terminal now and then, as long as campaigns run or a test takes long.

    While a test runs, what is written to standard output is captured: made before the first test, this object keeps the
    terminal for itself.

    Args:
        notes: the folder of notes.
        every: seconds between two lines.
    """

    def __init__(self, notes: Path, every: float) -> None:
        self._notes = notes
        self._every = every
        self._over = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._write, name="regional-progress", daemon=True)

    def __enter__(self) -> ProgressLines:
        """Begin."""
        self._terminal = _standard_output()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Write no more; what stopped the thread is raised here, where no test is taken for it."""
        self._over.set()
        self._thread.join()
        if self._terminal is not sys.stdout:
            self._terminal.close()
        if self._error is not None:
            raise self._error

    def _write(self) -> None:
        try:
            self._write_until_over()
        except Exception as error:  # noqa: BLE001 - raised again by the thread that waits for this one
            self._error = error

    def _write_until_over(self) -> None:
        before = ""
        while not self._over.wait(self._every):
            lines = "\n".join(filter(None, (progress_line(self._notes), slow_line(self._notes, self._every))))
            if lines and lines != before:
                # pytest stands behind the dots of its tests, most of the time.
                self._terminal.write(f"\n{lines}\n")
                self._terminal.flush()
            before = lines


def _standard_output() -> TextIO:
    """Return standard output as it is now, whatever is done to its file descriptor later."""
    try:
        return os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding=sys.stdout.encoding, errors="backslashreplace")
    except (OSError, ValueError):
        return sys.stdout  # none that has a file: a test of pytest in pytest


def progress_line(notes: Path) -> str:
    """Return one line about all campaigns that run; empty where none does."""
    texts = [note["text"] for note in _notes(notes, "progress")]
    return f"regional fuzzing: {'; '.join(texts)}" if texts else ""


def slow_line(notes: Path, longer_than: float) -> str:
    """Return one line about the tests that have run for more seconds than ``longer_than``; empty where none has.

    Campaigns tell of themselves.
    """
    campaigns = {note["text"].partition(" ")[0] for note in _notes(notes, "progress")}
    texts = []
    for note in _notes(notes, "running"):
        seconds = round(time.time() - note["began"])
        if seconds > longer_than and note["test"].rpartition("::")[2] not in campaigns:
            texts.append(f"{note['test']} for {duration(seconds)}")
    return f"regional: still running {'; '.join(texts)}" if texts else ""


def _notes(folder: Path, kind: str) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob(f"{kind}-*.json")):
        # It ends, or begins, just now.
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            yield json.loads(path.read_text(encoding="utf-8"))


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
