"""SIGTERM, SIGHUP and SIGQUIT end a run as Ctrl-C does: with its reports, and without its folder of temporary files.

By default they end the process at once, without pytest.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FrameType

from pytest_regional import _processes

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

    def install(self) -> None:
        """Install the handlers; outside of the main thread, where Python does not allow it, nothing is done."""
        if threading.current_thread() is not threading.main_thread():
            return
        for name in NAMES:
            signum = getattr(signal, name, None)
            if signum is not None and signal.getsignal(signum) is signal.SIG_DFL and not _caught_in_c(signum):
                signal.signal(signum, self._handle)
                self._taken.append(signum)
        _INSTALLED.add(self)

    def put_back(self) -> None:
        """Restore the default, unless another handler has been installed since."""
        _INSTALLED.discard(self)
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


@contextlib.contextmanager
def interrupt_deferred() -> Iterator[list[int]]:
    """Note a first Ctrl-C in the list that is yielded, rather than raise it; a second one is raised."""
    came: list[int] = []

    def note(signum: int, frame: FrameType | None) -> None:
        came.append(signum)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield came
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
