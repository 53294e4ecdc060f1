"""SIGTERM, SIGHUP and SIGQUIT end a run as Ctrl-C does: with its reports, and without its folder of temporary files.

By default they end the process at once, without pytest.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import subprocess
import threading
import weakref
from collections.abc import Callable, Iterable
from types import FrameType

from pytest_regional import _processes
from pytest_regional._limits import GRACE

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
    """Watches for signals that this process has Python's handlers for, until it is stopped.

    Args:
        signals: their numbers.
    """

    def __init__(self, signals: Iterable[int]) -> None:
        self._process = os.getpid()
        self._signals: list[int] = []
        command = ["sh", "-c", _SCRIPT, "sh", str(self._process), f"{GRACE:g}"]
        nowhere = subprocess.DEVNULL
        try:  # in another session, so that the signal does not reach it as well
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


#: Windows has the first alone.
NAMES = ("SIGTERM", "SIGHUP", "SIGQUIT")


class EndedBySignal(KeyboardInterrupt):
    """A signal asked the process to end; pytest ends a run so, and no test catches it by mistake.

    It is no :class:`Exception`: compilers catch any of those, and the run would go on.
    """


class EndingSignals:
    """Turns those signals into :class:`EndedBySignal`, in the process that installs it, until it puts them back.

    A signal that has a handler, or is ignored, is left as it is. A second signal ends the process at
    once, whatever the first has come to.

    Args:
        ending: called with the signal's name when one comes; returns the message.

    Attributes:
        came: the number of the signal that came, or 0.
        raises: whether the run is still to be interrupted; one that writes its reports is not.
    """

    def __init__(self, ending: Callable[[str], str]) -> None:
        self.came = 0
        self.raises = True
        self._ending = ending
        self._process = os.getpid()
        self._taken: list[int] = []
        self._last_resort: LastResort | None = None

    def install(self, *, last_resort: bool = False) -> None:
        """Install the handlers; outside of the main thread, where Python does not allow it, nothing is done.

        Args:
            last_resort: also have a process ended that cannot run them.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for name in NAMES:
            signum = getattr(signal, name, None)
            if signum is not None and signal.getsignal(signum) is signal.SIG_DFL and not _caught_in_c(signum):
                signal.signal(signum, self._handle)
                self._taken.append(signum)
        _INSTALLED.add(self)
        if last_resort and self._taken and hasattr(faulthandler, "register"):
            self._last_resort = LastResort(self._taken)

    def put_back(self) -> None:
        """Restore the default, unless another handler has been installed since."""
        _INSTALLED.discard(self)
        if self._last_resort is not None:
            self._last_resort.leave()
            self._last_resort = None
        for signum in self._taken:
            if signal.getsignal(signum) == self._handle:
                signal.signal(signum, signal.SIG_DFL)
        self._taken.clear()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.came or os.getpid() != self._process:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
            return
        self.came = signum
        message = self._ending(signal.Signals(signum).name)
        if self.raises:
            raise EndedBySignal(message)


def _caught_in_c(signum: int) -> bool:
    """Return whether there is a handler that Python does not know of: :mod:`faulthandler`, or a library."""
    return _processes.catches(os.getpid(), signum)


#: Forked processes are other programs, which such a signal ends as ever, whatever they do at that time.
_INSTALLED: weakref.WeakSet[EndingSignals] = weakref.WeakSet()


def _forget_in_a_fork() -> None:
    for installed in list(_INSTALLED):
        installed.put_back()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_a_fork)
