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
        self._local = threading.local()

    @contextlib.contextmanager
    def around(self, other: str = "") -> Iterator[None]:
        """Look at the settings (0.3 ms) around a compile, which is not looked at if it is that of an ``other`` backend.

        A compile that raises has its own failure.
        """
        if other or getattr(self._local, "inside", False):
            yield
            return
        self._local.inside = True
        try:
            before = Snapshot.take(while_compiling=True)
            yield
            self.found += before.leaks()
        finally:
            self._local.inside = False


__all__ = ["CompileLeaks"]
