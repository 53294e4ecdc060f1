"""A time limit for one phase of a test that shows where every thread was."""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType

from _pytest.outcomes import Failed

from pytest_regional import processes, stacks


class RegionalTimeoutError(Failed):
    """A phase of a marked test took longer than ``--regional-timeout``; the message holds the stacks of all threads.

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
        phase: what is limited, as a message names it: the call of a test is what nobody has to name.
        error: what was raised when the limit was reached.
        before: the processes that outlive it.
    """

    seconds: float | None = None
    stderr: int = 2
    phase: str = ""
    error: RegionalTimeoutError | None = None
    before: set[processes.Identity] = field(default_factory=set)

    def spare_processes(self) -> None:
        """Have the processes that run now outlive the limit."""
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

    def reached(self, frame: FrameType | None) -> RegionalTimeoutError:
        """End what was started; return the error, which says where all threads are."""
        running = processes.started_after(self.before)
        started, threads = stacks.of_processes(running), stacks.of_threads(frame)
        # What one of them started meanwhile is among the second.
        ended = {*processes.end(running), *processes.end(processes.started_after(self.before))}
        also = f"; processes that it had started were ended: {len(ended)}" if ended else ""
        phase = f" of {self.phase}" if self.phase else ""
        return RegionalTimeoutError(
            f"still running after --regional-timeout={self.seconds:g} seconds{phase}{also}\n{started}{threads}"
        )


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
    limit = TimeLimit(seconds, stderr, phase)
    limit.spare_processes()

    def interrupt(signum: int, frame: FrameType | None) -> None:
        # The alarm of the grace stays set: what catches this error and goes on ends then.
        limit.error = limit.reached(frame)
        raise limit.error

    previous = signal.signal(signal.SIGALRM, interrupt)
    limit.arm(seconds)
    try:
        yield limit
    finally:
        limit.disarm()
        signal.signal(signal.SIGALRM, previous)
