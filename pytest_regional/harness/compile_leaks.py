"""Settings that a backend leaves changed when it returns from a compile."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from .isolation.leak import Leak
from .isolation.snapshot import Snapshot


class CompileLeaks:
    """What compiles of the backend under test left changed; in one that is part of another the outer one is looked at.

    Attributes:
        found: each setting, with what it was before the compile and after it.
    """

    def __init__(self) -> None:
        self.found: list[Leak] = []
        self._inside = False
        self._elsewhere = 0

    @contextlib.contextmanager
    def around(self, other: str = "") -> Iterator[None]:
        """Look at the settings (0.3 ms) around a compile, which is not looked at if it is that of an ``other`` backend.

        A compile that raises has its own failure. Most settings are the process's: what is different while several
        threads compile may be another's doing, so only compiles of the main thread count, beside which no other began.
        """
        if threading.current_thread() is not threading.main_thread():
            self._elsewhere += 1
            yield
            return
        if other or self._inside:
            yield
            return
        self._inside, elsewhere = True, self._elsewhere
        try:
            before = Snapshot.take(while_compiling=True)
            yield
            if self._elsewhere == elsewhere:
                self.found += before.leaks()
        finally:
            self._inside = False


__all__ = ["CompileLeaks"]
