"""How far campaigns are, and which tests take long: files that the process with the terminal reads.

Each process has a heartbeat file, and each campaign a progress file, so that those of xdist workers show as well. What
a worker that died was doing is read from its last heartbeat.
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

from pytest_regional._files import dumps, write_whole
from pytest_regional._text import plural
from pytest_regional._waiting import longer_than
from pytest_regional.fuzz.budget import duration

if TYPE_CHECKING:
    import pytest

    from pytest_regional.fuzz.budget import Clock
    from pytest_regional.fuzz.campaign import CampaignResult
import html
from collections.abc import Sequence
from datetime import datetime, timezone

from pytest_regional.report.document import RunReport
from pytest_regional.report.outputs import ending_of

#: Seconds between two lines on the terminal: often enough to be believed, rare enough for the log of a night.
EVERY = 30.0

#: Seconds of silence, and of the next look at whether they have passed.
SILENCE, LOOK = 2.0, 0.25

#: Seconds between two writes of one campaign, which may check hundreds of programs in them.
WRITTEN_EVERY = 1.0


class ProgressFile:
    """How far one campaign is.

    Args:
        path: its file.
        name: the test, as the line names it.
        unit: what it checks: programs or sequences.
    """

    def __init__(self, path: Path, name: str, unit: str = "program") -> None:
        self._path = path
        self._name = name
        self._unit = unit
        self._written = 0.0

    def __call__(self, result: CampaignResult, clock: Clock) -> None:
        """Write how far the campaign is."""
        if time.monotonic() - self._written < WRITTEN_EVERY:
            return
        self._written = time.monotonic()
        spent, passed = plural(result.examples, self._unit), duration(clock.seconds)
        if clock.budget.examples is not None:
            spent = f"{result.examples} of {plural(clock.budget.examples, self._unit)}"
        else:
            passed += f" of {clock.budget}"
        found = plural(len(result.findings), "new finding")
        text = f"{self._name} {spent} in {passed}, {found}"
        write_whole(self._path, dumps({"text": text}).encode())

    def close(self) -> None:
        """Remove the file: the campaign is over."""
        self._path.unlink(missing_ok=True)


class ProgressLines:
    """Writes a line to the terminal now and then, as long as campaigns run or a test takes long.

    While a test runs, what is written to standard output is captured: made before the first test, this object keeps the
    terminal for itself.

    Args:
        scratch_dir: the directory of those files.
        every: seconds between two lines.
        waits: whether to say, once, what this process does itself that takes more than :data:`SILENCE` seconds.
    """

    def __init__(self, scratch_dir: Path, every: float, *, waits: bool = False) -> None:
        self._scratch_dir = scratch_dir
        self._every = every
        self._waits = waits
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
        before, said, next_line = "", {""}, time.monotonic() + self._every
        while not self._over.wait(min(self._every, LOOK) if self._waits else self._every):
            what = longer_than(SILENCE) if self._waits else ""
            if what not in said:
                said.add(what)
                self._say(waiting_line(what))
            if time.monotonic() < next_line:
                continue
            next_line = time.monotonic() + self._every
            lines = "\n".join(
                filter(None, (progress_line(self._scratch_dir), slow_line(self._scratch_dir, self._every)))
            )
            if lines and lines != before:
                self._say(lines)
            before = lines

    def _say(self, lines: str) -> None:
        # The cursor is most often after the dots of tests.
        self._terminal.write(f"\n{lines}\n")
        self._terminal.flush()


def waiting_line(what: str) -> str:
    """Return the line about what the process does itself."""
    return f"regional: {what} ..."


def says_waits(config: pytest.Config) -> bool:
    """Return whether a run says what it waits for: on a terminal, and with ``-v``; not with ``-q``, nor in a worker."""
    if hasattr(config, "workerinput"):
        return False
    return sys.stdout.isatty() if config.get_verbosity() == 0 else config.get_verbosity() > 0


@contextlib.contextmanager
def said_if_it_takes_long(config: pytest.Config, what: str) -> Iterator[None]:
    """Say, before tests run, what the block does, once it has taken more than :data:`SILENCE` seconds."""
    if not says_waits(config):
        yield
        return
    timer = threading.Timer(SILENCE, lambda: print(waiting_line(what), flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _standard_output() -> TextIO:
    """Return standard output as it is now, whatever is done to its file descriptor later."""
    try:
        return os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding=sys.stdout.encoding, errors="backslashreplace")
    except (OSError, ValueError):
        return sys.stdout  # none that has a file: a test of pytest in pytest


def progress_line(scratch_dir: Path) -> str:
    """Return one line about all campaigns that run; empty where none does."""
    texts = [note["text"] for note in _files_of(scratch_dir, "progress")]
    return f"regional fuzzing: {'; '.join(texts)}" if texts else ""


def slow_line(scratch_dir: Path, longer_than: float) -> str:
    """Return one line about the tests that have run for more seconds than ``longer_than``; empty where none has.

    Campaigns have their own line.
    """
    campaigns = {note["text"].partition(" ")[0] for note in _files_of(scratch_dir, "progress")}
    texts = []
    for note in _files_of(scratch_dir, "heartbeat"):
        if not note:
            continue
        seconds = round(time.time() - note["began"])
        if seconds > longer_than and note["test"].rpartition("::")[2] not in campaigns:
            texts.append(f"{note['test']} for {duration(seconds)}")
    return f"regional: still running {'; '.join(texts)}" if texts else ""


def _files_of(scratch_dir: Path, kind: str) -> Iterator[dict[str, Any]]:
    for path in sorted(scratch_dir.glob(f"{kind}-*.json")):
        # It ends, or begins, just now.
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            yield json.loads(path.read_text(encoding="utf-8"))


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
