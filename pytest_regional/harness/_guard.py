"""A process that ends another one, with all that it started, when who asked for it has died. Linux; elsewhere none.

The kernel's own signal for that (``PR_SET_PDEATHSIG``) goes with a thread and reaches one process alone: the compilers
that it started would go on. A thread that waits would get no turn while code of another language holds the lock of the
interpreter. So it is a process, forked before anything is imported that takes memory or starts threads.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
from collections.abc import Iterator

from pytest_regional import _processes


@contextlib.contextmanager
def ends_with(asker: int) -> Iterator[None]:
    """Have this process end when the process ``asker`` has, while the block runs."""
    if not hasattr(os, "pidfd_open"):
        yield
        return
    this = os.getpid()
    guard = os.fork()
    if guard == 0:
        try:
            _guard(this, asker)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        if os.getpid() == this:  # a fork of this process leaves the block too
            _end(guard)


def _end(guard: int) -> None:
    # Where code of the user waited for any child, the number may be another process's by now.
    with contextlib.suppress(ChildProcessError):
        if os.waitpid(guard, os.WNOHANG) == (0, 0):
            os.kill(guard, signal.SIGKILL)
            os.waitpid(guard, 0)


def _guard(guarded: int, asker: int) -> None:
    faulthandler.disable()  # who asks all processes for their stacks gets none of this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _processes.call_this_a_guard()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # a pipe that it kept open would never be at its end
        os.dup2(nothing, stream)
    own = os.pidfd_open(guarded)
    try:
        ended, _, _ = select.select([own, os.pidfd_open(asker)], [], [])
    except ProcessLookupError:
        ended = []  # who asked died before this line
    if own not in ended:
        _processes.end([number for number in _processes.with_all_below(guarded) if number != os.getpid()])


__all__ = ["ends_with"]
