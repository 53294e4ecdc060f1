"""Ends a process that a signal asked to end and that cannot: it runs another language's code, and holds Python's lock.

Python runs no handler then, in no thread. But :mod:`faulthandler` writes when the signal comes, whatever runs; and a
shell that reads what it writes ends the process ten seconds later, or when a second signal comes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import subprocess
from collections.abc import Iterable

from pytest_regional.timeout import GRACE

_SCRIPT = """
while read -r line; do
    case "$line" in *"most recent call first"*)
        if [ -n "$sleeper" ]; then kill -KILL "$1"; exit; fi
        (sleep "$2"; kill -KILL "$1") & sleeper=$! ;;
    esac
done
[ -z "$sleeper" ] || kill "$sleeper"
"""


class LastResort:
    """Watches for signals that this process has Python's handlers for, until it is told to leave.

    Args:
        signals: their numbers.
    """

    def __init__(self, signals: Iterable[int]) -> None:
        self._process = os.getpid()
        self._signals: list[int] = []
        command = ["sh", "-c", _SCRIPT, "sh", str(self._process), f"{GRACE:g}"]
        nowhere = subprocess.DEVNULL
        try:  # in a session of its own, so that the signal does not reach it as well
            self._shell = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True
            )
        except OSError:  # no shell
            return
        assert self._shell.stdin is not None
        self._pipe = self._shell.stdin
        for signum in signals:
            faulthandler.register(signum, file=self._pipe, all_threads=False, chain=True)
            self._signals.append(signum)

    def leave(self) -> None:
        """Watch no more; in a forked process, let go of what is its parent's."""
        if not self._signals:
            return
        for signum in self._signals:
            faulthandler.unregister(signum)
        self._signals.clear()
        with contextlib.suppress(OSError):
            self._pipe.close()
        if os.getpid() == self._process:
            self._shell.wait()


__all__ = ["LastResort"]
