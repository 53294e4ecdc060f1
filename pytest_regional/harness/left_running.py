"""Threads and processes that a test leaves running, so that they are named.

A thread cannot be ended from outside; a process may serve the tests of a whole module.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from pytest_regional._processes import children, is_of_inductors_pool, runs

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


def processes() -> frozenset[int]:
    """Return the processes that this one has started and that run now. Linux; elsewhere there are none to see."""
    return frozenset(children(os.getpid()))


def processes_left_running(before: frozenset[int]) -> tuple[str, ...]:
    """Return the names of processes that run now and did not ``before``, but for those of Inductor's and of pools."""
    new = processes() - before
    deadline = time.monotonic() + _PATIENCE
    while any(map(runs, new)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return tuple(_name(number) for number in sorted(new) if runs(number) and not _is_of_a_pool(number))


def _name(number: int) -> str:
    with contextlib.suppress(OSError):
        return f"{Path(f'/proc/{number}/comm').read_text(encoding='utf-8', errors='replace').strip()} ({number})"
    return str(number)


def _is_of_a_pool(number: int) -> bool:
    """Say whether a process serves this one once anything needed it, or was forked from it as workers are."""
    try:
        command = Path(f"/proc/{number}/cmdline").read_bytes()
        forked = command == Path("/proc/self/cmdline").read_bytes()
    except OSError:
        return True  # it has ended
    return forked or b"multiprocessing" in command or is_of_inductors_pool(number)


__all__ = ["left_running", "processes", "processes_left_running", "threads"]
