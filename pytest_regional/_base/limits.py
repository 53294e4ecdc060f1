"""Limits of time and memory, interrupts that are remembered, the budgets of fuzzing, and markers left by crashes."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import resource
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from _pytest.outcomes import Failed

from pytest_regional._base import processes

#: Seconds. Timers count no shorter ones reliably, and a run of a year has no limit.
LEAST_SECONDS, MOST_SECONDS = 0.1, 365 * 24 * 3600
SECONDS = f"a number of seconds from {LEAST_SECONDS:g} to {MOST_SECONDS} (a year), such as 120 or 2.5"


def seconds_of(value: object) -> float:
    """Return the seconds that ``value``, a number or its text, stands for.

    Raises:
        ValueError: it is no number, or none from :data:`LEAST_SECONDS` to :data:`MOST_SECONDS`; says what was expected.
    """
    try:
        seconds = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else 0.0
    except (ValueError, OverflowError):
        seconds = 0.0
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise ValueError(f"expected {SECONDS}")
    return seconds


_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

#: The least that a test takes beyond its process (the first compile of one region, torch 2.13.0: more than 32M), and
#: more than any machine has.
LEAST_BYTES, MOST_BYTES = 64 * 2**20, 1024 * 2**40

#: What torch says where an allocation fails; Python itself raises ``MemoryError``.
_TORCH_SAYS = "can't allocate memory"


def memory_of(text: str) -> int:
    """Return the bytes of a limit of memory, as people give it: ``4G``, ``500M``, ``1.5g``.

    Raises:
        ValueError: no size, or none from :data:`LEAST_BYTES` to :data:`MOST_BYTES`; says what was expected.
    """
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    size = float(found[1]) * _UNITS[found[2].upper()] if found else 0.0
    if not LEAST_BYTES <= size <= MOST_BYTES:
        raise ValueError(
            f"expected a size from {LEAST_BYTES // 2**20}M, which the smallest test takes, to "
            f"{MOST_BYTES // 2**40}T, such as 8G or 500M"
        )
    return int(size)


@dataclass
class MemoryLimit:
    """A limit on what the process takes, or none.

    Attributes:
        most: bytes beyond what the process has when it begins; ``None`` for no limit.
        before: soft and hard limit of the process.
    """

    most: int | None = None
    before: tuple[int, int] = (-1, -1)

    def begin(self) -> None:
        """Take effect, from what the process has now."""
        self.before = _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        status = _STATUS.read_text(encoding="utf-8", errors="replace")
        found = re.search(r"^VmData:\s+(\d+) kB", status, re.MULTILINE)
        wanted = (int(found[1]) * 1024 if found else 0) + (self.most or 0)
        if hard != resource.RLIM_INFINITY:
            wanted = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))

    def end(self) -> None:
        """Put the limit back that was there before."""
        resource.setrlimit(resource.RLIMIT_DATA, self.before)

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Count nothing that the block takes."""
        if self.most is None:
            yield
            return
        self.end()
        try:
            yield
        finally:
            self.begin()


@contextlib.contextmanager
def memory_limit(most: int | None) -> Iterator[MemoryLimit]:
    """Let allocations fail once the process has taken ``most`` more bytes than it has now; ``None`` for no limit.

    What is counted are the private writable pages of this process (``RLIMIT_DATA``, setrlimit(2)); processes that it
    starts have the same limit each, counted from nothing. Linux; elsewhere nothing is limited. A failure of torch or
    Python for want of memory gets a note that says whose limit it was.
    """
    if most is None or not _STATUS.exists():
        yield MemoryLimit()
        return
    limit = MemoryLimit(most)
    limit.begin()
    try:
        yield limit
    except Exception as error:
        said = isinstance(error, MemoryError) or _TORCH_SAYS in "".join(traceback.format_exception_only(error))
        if said and hasattr(error, "add_note"):  # from Python 3.11 on
            error.add_note(f"regional_memory lets a test take {most / 2**30:.3g} GiB")
        raise
    finally:
        limit.end()


_STATUS = Path("/proc/self/status")


class RegionalTimeoutError(Failed):
    """A test or a program ran longer than it may; the message says by which limit, and holds the stacks of all threads.

    Not an ``Exception``: comparing what a program raises must not take it for the program's own.
    """


#: Seconds for which code that cannot be interrupted may go on past its limit.
GRACE = 10.0


@dataclass
class TimeLimit:
    """A limit of so many ``seconds``, or none.

    Attributes:
        seconds: ``None`` for no limit.
        stderr: the file that the stacks of code which cannot be interrupted are written to.
        error: what was raised when the limit was reached.
        before: the processes that outlive it.
    """

    seconds: float | None = None
    stderr: int = 2
    error: RegionalTimeoutError | None = None
    before: set[processes.Identity] = field(default_factory=set)

    def spare_processes(self) -> None:
        """Keep the processes that run now when the limit is reached."""
        if self.seconds is not None:
            self.before |= processes.descendants()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Stop the clock while the block runs."""
        if self.seconds is None:
            yield
            return
        left = self.disarm()
        try:
            yield
        finally:
            self.arm(left)

    def arm(self, seconds: float) -> None:
        """Interrupt in ``seconds`` (0: no more), and end the process :data:`GRACE` seconds later."""
        signal.setitimer(signal.ITIMER_REAL, seconds)
        faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=self.stderr)

    def disarm(self) -> float:
        """Interrupt no more; return the seconds that were left, 0 where the limit was reached."""
        faulthandler.cancel_dump_traceback_later()
        return signal.setitimer(signal.ITIMER_REAL, 0)[0]


@contextlib.contextmanager
def handling(handler: Callable[[int, FrameType | None], None], *signals: int) -> Iterator[None]:
    """Have these signals call ``handler`` while the context lasts."""
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def ended(said: str, before: set[processes.Identity], frame: FrameType | None) -> RegionalTimeoutError:
    running = processes.started_after(before)
    started, threads = processes.of_processes(running), processes.of_threads(frame)
    # What one of them started meanwhile is among the second.
    ended = {*processes.end(running), *processes.end(processes.started_after(before))}
    also = f"; processes that it had started were ended: {len(ended)}" if ended else ""
    return RegionalTimeoutError(f"{said}{also}\n{started}{threads}")


@contextlib.contextmanager
def time_limit(seconds: float | None, stderr: int = 2, phase: str = "") -> Iterator[TimeLimit]:
    """Raise :class:`RegionalTimeoutError` inside when it takes longer than ``seconds``, and end what it started.

    Uses ``SIGALRM``, hence the main thread and no Windows; elsewhere it does nothing, as a timeout that cannot
    interrupt would only report late. Python runs no handler while code of another language does: where that goes on
    for :data:`GRACE` seconds more, the stacks of all threads are written to the file ``stderr`` and the process ends.
    Under pytest-xdist that is the end of one worker, and of the test that it ran.
    """
    usable = hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread()
    if seconds is None or not usable:
        yield TimeLimit()
        return
    limit = TimeLimit(seconds, stderr)
    limit.spare_processes()

    def interrupt(signum: int, frame: FrameType | None) -> None:
        # The alarm of the grace stays set: what catches this error and goes on ends then.
        of_phase = f" of {phase}" if phase else ""
        said = f"still running after --regional-timeout={seconds:g} seconds{of_phase}"
        limit.error = ended(said, limit.before, frame)
        raise limit.error

    with handling(interrupt, signal.SIGALRM):
        limit.arm(seconds)
        try:
            yield limit
        finally:
            limit.disarm()


@contextlib.contextmanager
def noted_interrupts(*, raised: bool) -> Iterator[list[int]]:
    """Add each interrupt to the list that is yielded, and raise it as well (``raised``); or only add the first one.

    With ``raised=False`` a second interrupt is raised as usual, and nothing is noted where interrupts are handled in
    another way already. Outside of the main thread, where no signal arrives, it does nothing.
    """
    came: list[int] = []

    def note(signum: int, frame: FrameType | None) -> None:
        came.append(signum)
        if raised:
            raise KeyboardInterrupt
        signal.signal(signal.SIGINT, signal.default_int_handler)

    main = threading.current_thread() is threading.main_thread()
    if not main or (not raised and signal.getsignal(signal.SIGINT) is not signal.default_int_handler):
        yield came
        return
    with handling(note, signal.SIGINT):
        yield came


#: The directory of crash markers, in the directory of findings.
MARKERS = "checking"


def crash_marker(findings: Path, name: str) -> Path:
    """Return the file that holds what this process checks as shard ``name``; it stays when the process crashes."""
    markers = findings / MARKERS
    markers.mkdir(parents=True, exist_ok=True)
    return markers / f"{name}-{os.getpid()}.json"


def crash_markers(findings: Path, since: float = 0.0) -> list[Path]:
    """Return the markers of processes that ended, written after ``since``, in seconds since the epoch."""
    found = []
    for marker in sorted((findings / MARKERS).glob("*.json")):
        if marker.is_file() and marker.stat().st_mtime >= since:
            try:
                os.kill(int(marker.stem.rpartition("-")[2]), 0)
            except PermissionError:
                continue  # another user's
            except (OverflowError, ProcessLookupError, ValueError):  # no process has this number
                found.append(marker)
    return found
