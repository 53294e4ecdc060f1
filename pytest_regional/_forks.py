"""What a process that a test forks must not share with the one that runs tests.

It is a copy of that process: with its end of the pipes to pytest-xdist, open as long as it lives, so that
nobody heard of the death of the worker; and with a watchdog of :mod:`faulthandler` that is armed and has no thread, for
which it would wait for ever when it disarms it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
from collections.abc import Iterator
from typing import Any

import pytest


class ForkedProcesses:
    """Takes from each forked process what is not for it, from now until :meth:`put_back`.

    Args:
        config: of the process that runs tests, or of a worker of pytest-xdist.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._pipes = tuple(_pipes_of_a_worker(config))
        _ACTIVE.append(self)

    def put_back(self) -> None:
        """Leave forked processes alone."""
        _ACTIVE.remove(self)

    def forget(self) -> None:
        """Let go, in a forked process, of what is its parent's."""
        faulthandler.cancel_dump_traceback_later = _nothing
        faulthandler.dump_traceback_later = _nothing
        for pipe in self._pipes:
            # The number stays taken: the copy of execnet closes it when it is collected.
            with contextlib.suppress(OSError):
                nowhere = os.open(os.devnull, os.O_RDWR)
                os.dup2(nowhere, pipe, inheritable=False)
                os.close(nowhere)


def _nothing(*arguments: Any, **keywords: Any) -> None:
    """Stand for a function that waits for a thread which is in the parent alone (CPython 3.10 to 3.14)."""


def _pipes_of_a_worker(config: pytest.Config) -> Iterator[int]:
    """Yield the files through which a worker talks with its controller: private attributes of execnet (2.1).

    Where they are not found, a worker that dies is noticed when all processes that it forked have ended.
    """
    for plugin in config.pluginmanager.get_plugins() if hasattr(config, "workerinput") else ():
        io = getattr(getattr(getattr(plugin, "channel", None), "gateway", None), "_io", None)
        for end in (getattr(io, "infile", None), getattr(io, "outfile", None)):
            if end is not None:
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    yield end.fileno()


_ACTIVE: list[ForkedProcesses] = []


def _in_a_fork() -> None:
    for active in _ACTIVE:
        active.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_a_fork)

__all__ = ["ForkedProcesses"]
