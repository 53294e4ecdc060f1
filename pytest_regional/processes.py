"""The processes that a test started, ended with it when it hangs. Linux; elsewhere there are none to see."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

#: Inductor's pool outlives the test that first needed it; other tests wait for its answers.
_KEPT = b"torch._inductor.compile_worker"


class Process(NamedTuple):
    """One process: its number, its parent's, and when it began, in clock ticks since the machine did."""

    number: int
    parent: int
    began: int


def now() -> int:
    """Return the time in the unit of :attr:`Process.began`."""
    with contextlib.suppress(OSError):
        seconds = float(Path("/proc/uptime").read_text().split()[0])
        return int(seconds * os.sysconf("SC_CLK_TCK"))
    return 0


def end_started_since(began: int) -> list[int]:
    """Kill the descendants of this process that began at ``began`` or later; return their numbers.

    A compiler that is killed alone would leave what it started running: ``g++`` its ``cc1plus``, a script its programs.
    """
    processes = list(_processes())
    ours = {os.getpid()}
    ended = []
    for process in sorted(processes, key=lambda one: one.began):
        if process.parent in ours:
            ours.add(process.number)
            if process.began >= began and not _is_kept(process.number):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.number, signal.SIGKILL)
                    ended.append(process.number)
    return ended


def _processes() -> Iterator[Process]:
    for entry in Path("/proc").glob("[0-9]*"):
        # One that ends while it is read is not there to be killed.
        with contextlib.suppress(OSError):
            # Fields of proc(5): the name in parentheses may hold anything, so count from behind it.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            yield Process(int(entry.name), int(fields[1]), int(fields[19]))


def _is_kept(number: int) -> bool:
    try:
        return _KEPT in Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        return False


__all__ = ["Process", "end_started_since", "now"]
