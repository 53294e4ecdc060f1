"""A time limit for one test that shows where every thread was."""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from _pytest.outcomes import Failed

from pytest_regional import processes, stacks


class RegionalTimeoutError(Failed):
    """A marked test took longer than ``--regional-timeout``; the message holds the stacks of all threads.

    Not an ``Exception``: comparing what a program raises must not take it for the program's own.
    """


@dataclass
class TimeLimit:
    """The limit of one test; ``error`` is what was raised when it was reached."""

    error: RegionalTimeoutError | None = None


#: Seconds for which code that cannot be interrupted may go on past its limit.
GRACE = 10.0


@contextlib.contextmanager
def time_limit(seconds: float | None, stderr: int = 2) -> Iterator[TimeLimit]:
    """Raise :class:`RegionalTimeoutError` inside when it takes longer than ``seconds``, and end what it started.

    Uses ``SIGALRM``, hence the main thread and no Windows; elsewhere it does nothing, as a timeout that cannot
    interrupt would only report late. Python runs no handler while code of another language does: where that goes on
    for :data:`GRACE` seconds more, the stacks of all threads are written to the file ``stderr`` and the process ends.
    Under pytest-xdist that is the end of one worker, and of the test that it ran.
    """
    usable = hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread()
    limit = TimeLimit()
    if seconds is None or not usable:
        yield limit
        return

    began = processes.now()

    def interrupt(signum: int, frame: FrameType | None) -> None:
        # The alarm of the grace stays set: what catches this error and goes on ends then.
        running = processes.started_since(began)
        started, threads = stacks.of_processes(running), stacks.of_threads(frame)
        ended = {*processes.end(running), *processes.end_started_since(began)}
        also = f"; processes that it had started were ended: {len(ended)}" if ended else ""
        limit.error = RegionalTimeoutError(
            f"still running after --regional-timeout={seconds:g} seconds{also}\n{started}{threads}"
        )
        raise limit.error

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=stderr)
    try:
        yield limit
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
