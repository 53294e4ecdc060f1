"""Settings that a backend leaves changed when it returns from a compile."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from pytest_regional.harness.isolation.leak import Leak
from pytest_regional.harness.isolation.snapshot import Snapshot


class CompileLeaks:
    """What compiles of the backend under test left changed; in one that is part of another the outer one is looked at.

    Attributes:
        found: each setting, with what it was before the compile and after it.
    """

    def __init__(self) -> None:
        self.found: list[Leak] = []
        self._inside = False
        self._elsewhere = _Elsewhere()

    @contextlib.contextmanager
    def around(self, other: str = "") -> Iterator[None]:
        """Look at the settings (0.3 ms) around a compile, which is not looked at if it is that of an ``other`` backend.

        A compile that raises has its own failure. Most settings are the process's, and what differs while another
        thread compiles may be that thread's doing: only the main thread's compiles count, and those that ran alone.
        """
        if threading.current_thread() is not threading.main_thread():
            with self._elsewhere.one():
                yield
            return
        if other or self._inside:
            yield
            return
        self._inside = True
        try:
            running, begun = self._elsewhere.seen()
            before = Snapshot.take(while_compiling=True)
            yield
            if not running and self._elsewhere.seen() == (0, begun):
                self.found += before.leaks()
        finally:
            self._inside = False


class _Elsewhere:
    """Compiles in other threads: how many run, and how many have begun."""

    def __init__(self) -> None:
        self._running = self._begun = 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        with self._lock:
            self._running += 1
            self._begun += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1

    def seen(self) -> tuple[int, int]:
        with self._lock:
            return self._running, self._begun


__all__ = ["CompileLeaks"]
