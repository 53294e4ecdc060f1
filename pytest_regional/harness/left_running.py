"""Threads that a test leaves running: they cannot be ended from outside, so they are named."""

from __future__ import annotations

import sys
import threading
import time
from types import FrameType

#: Seconds in which a thread that is about to end may do so.
_PATIENCE = 0.2

#: Packages whose threads serve the whole process once anything needed them: pools of workers, queues to children.
_SERVANTS = ("torch", "concurrent", "multiprocessing", "tqdm", "execnet", "xdist")


def threads() -> frozenset[int]:
    """Return the threads that run now."""
    return frozenset(thread.ident for thread in threading.enumerate() if thread.ident is not None)


def left_running(before: frozenset[int]) -> tuple[str, ...]:
    """Return the names of threads that run now and did not ``before``, but for those of torch's own and of pools."""
    new = [thread for thread in threading.enumerate() if thread.ident not in before]
    deadline = time.monotonic() + _PATIENCE
    for thread in new:
        thread.join(max(0.0, deadline - time.monotonic()))
    frames = sys._current_frames()
    return tuple(
        thread.name
        for thread in new
        if thread.is_alive() and thread.ident in frames and not _serves(frames[thread.ident])
    )


def _serves(frame: FrameType | None) -> bool:
    """Say whether the thread was begun by one of :data:`_SERVANTS`: whose its first frame above ``threading`` is."""
    modules = []
    while frame is not None:
        modules.append(str(frame.f_globals.get("__name__", "")).partition(".")[0])
        frame = frame.f_back
    beginning = next((module for module in reversed(modules) if module != "threading"), "")
    return beginning in _SERVANTS


__all__ = ["left_running", "threads"]
