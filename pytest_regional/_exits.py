"""Functions of Python's that end a process at once: while marked tests run they say so, and never with success.

``os._exit(0)`` in a test would end the run with exit status 0 behind half of its tests. A process that a test forked is
left alone: such functions are how it ends. What ends the process from another language is not seen here; the report
stays unfinished then (:mod:`pytest_regional.report.unfinished`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

#: ``os.execl``, ``os.execvp`` and their like call the last two.
_ENDING = ("_exit", "abort", "execv", "execve")

#: How workers of pytest-xdist end that do not when they are asked to.
_OWN_ENDS = ("execnet.gateway_base",)


class ExitGuard:
    """Replaces those functions in the process that made it, until it is told to put them back.

    Args:
        ending: called before the process ends, with what ended it, in words.

    Attributes:
        test: the marked test that runs, or ran last; empty before the first, when all is as Python has it.
    """

    def __init__(self, ending: Callable[[str], None]) -> None:
        self.test = ""
        self._ending = ending
        self._process = os.getpid()
        self._originals: dict[str, Callable[..., Any]] = {}

    def install(self) -> None:
        """Replace the functions: before tests are imported, whose modules may keep them by another name."""
        for name in _ENDING:
            if hasattr(os, name):
                self._originals[name] = getattr(os, name)
                setattr(os, name, self._guarded(name))

    def put_back(self) -> None:
        """Put back what is not replaced by somebody else by now."""
        self.test = ""
        for name, original in self._originals.items():
            if getattr(getattr(os, name), "guard", None) is self:
                setattr(os, name, original)

    def leave(self, status: int) -> None:
        """End the process, without a word."""
        self._originals.get("_exit", os._exit)(status)

    def _guarded(self, name: str) -> Callable[..., Any]:
        original = self._originals[name]

        def guarded(*arguments: Any, **keywords: Any) -> Any:
            caller = _outside_of_os(sys._getframe(1))
            if self.test and os.getpid() == self._process and caller.f_globals.get("__name__") not in _OWN_ENDS:
                place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
                self._ending(f"{self.test} ended it with os.{name}, called at {place}")
                if name != "abort":
                    self.leave(_failure(name, arguments or tuple(keywords.values())))
            return original(*arguments, **keywords)

        guarded.guard = self  # type: ignore[attr-defined]
        guarded.__name__ = guarded.__qualname__ = name
        guarded.__doc__ = original.__doc__
        return guarded


def _outside_of_os(frame: FrameType) -> FrameType:
    while frame.f_back is not None and frame.f_globals.get("__name__") == os.__name__:
        frame = frame.f_back  # os.execvp calls os.execve
    return frame


def _failure(name: str, arguments: tuple[Any, ...]) -> int:
    """Return the exit status that was asked for, 1 in place of success."""
    status = arguments[0] if name == "_exit" and arguments and isinstance(arguments[0], int) else 1
    return status & 0xFF or 1


__all__ = ["ExitGuard"]
