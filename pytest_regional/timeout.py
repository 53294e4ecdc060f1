"""A time limit for one test that shows where every thread was."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType

from _pytest.outcomes import Failed


class RegionalTimeoutError(Failed):
    """A marked test took longer than ``--regional-timeout``; the message holds the stacks of all threads.

    Not an ``Exception``: comparing what a program raises must not take it for the program's own.
    """


@contextlib.contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise :class:`RegionalTimeoutError` inside when it takes longer than ``seconds``.

    Uses ``SIGALRM``, hence the main thread and no Windows; elsewhere it does nothing, as a timeout that cannot
    interrupt would only report late.
    """
    usable = hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread()
    if seconds is None or not usable:
        yield
        return

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise RegionalTimeoutError(f"still running after --regional-timeout={seconds:g} seconds\n{_all_stacks()}")

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _all_stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = []
    for identity, frame in sys._current_frames().items():
        lines = "".join(traceback.format_stack(frame))
        stacks.append(f"Thread {names.get(identity, identity)}:\n{lines}")
    return "\n".join(stacks)
