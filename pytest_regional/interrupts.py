"""Ctrl-C that is not lost.

What Python raises while a weak reference is cleaned up, or in a callback of the garbage collector, is ignored; and
compilers have many of both.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType


class Interrupts:
    """While the context lasts, remember that an interrupt came, besides raising :class:`KeyboardInterrupt`.

    Outside of the main thread, where no signal arrives, it does nothing.

    Attributes:
        came: whether one came.
    """

    def __init__(self) -> None:
        self.came = False
        self._in_main_thread = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Interrupts:
        """Begin."""
        if self._in_main_thread:
            self._previous = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *exception: object) -> None:
        """Give interrupts back to who had them."""
        if self._in_main_thread:
            signal.signal(signal.SIGINT, self._previous)

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        self.came = True
        raise KeyboardInterrupt
