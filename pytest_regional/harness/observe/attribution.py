"""Which Dynamo backend a compile belongs to: the one under test, or another that the test asked for.

A test that calls ``torch.compile(f, backend="inductor")`` while another backend is under test shows nothing of that
one. The backend that Dynamo calls is the one under test when it is the harness's own, when it has a name that the
specification's factory returns, or when it runs the same code: a closure that a factory makes again is another object
each time, and so is ``aot_autograd(fw_compiler=...)`` around a compiler of it. A backend of the test's own making that
calls the one under test is found by looking for that code on the stack.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType
from typing import Any

from pytest_regional._torch.dynamo import backend_behind, compilers_of, registered_backend
from pytest_regional._torch.process_state import COMPILING
from pytest_regional.backends.spec import BackendSpec
from pytest_regional.harness.isolation.snapshot import Snapshot
from pytest_regional.harness.isolation.watched import Leak


class Ownership:
    """Tells the backend under test from others.

    Args:
        spec: the backend under test.
    """

    def __init__(self, spec: BackendSpec) -> None:
        self._spec = spec
        self._ours: set[int] = set()

    def add(self, backend: Any, name: str) -> None:
        """Note a Dynamo backend that the harness made of the specification, and has to hold; ``name`` is for others."""
        self._ours.add(id(backend))
        backend.backend_name = name

    @property
    def uses_inductor(self) -> bool:
        """Whether code that Inductor generates below the backend under test is its own."""
        return self._spec.inductor

    def other(self, given: Any) -> str:
        """Return the name of the Dynamo backend ``given`` to ``torch.compile``; empty for the one under test."""
        backend = backend_behind(given)
        inner = getattr(backend, "compiler_fn", backend)
        if id(inner) in self._ours or self._is_spec(backend, inner):
            return ""
        return _name_of(backend)

    def is_running(self) -> bool:
        """Say whether this thread is in the code of the backend under test."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code in self._codes:
                return True
            frame = frame.f_back
        return False

    def _is_spec(self, backend: Any, inner: Any) -> bool:
        name = getattr(backend, "compiler_name", None)
        made = self._made
        if name is not None and name == (made if isinstance(made, str) else None):
            return True
        return any(code in self._codes for code in codes_of(inner))

    @functools.cached_property
    def _made(self) -> Any:
        return self._spec.factory()

    @functools.cached_property
    def _codes(self) -> frozenset[CodeType]:
        parts = [registered_backend(self._made) if isinstance(self._made, str) else self._made]
        if self._spec.graph_pass:
            parts.append(self._spec.graph_pass())
        parts += self._spec.compilers()
        return frozenset(code for part in parts for code in codes_of(part))


def codes_of(backend: Any) -> Iterator[CodeType]:
    """Yield the code that runs when ``backend`` is called; of ``aot_autograd(...)``, that of its compilers."""
    if isinstance(backend, functools.partial):
        yield from codes_of(backend.func)
        return
    inside = compilers_of(backend)
    if inside:
        yield from _all_codes(inside)
        return
    function = getattr(backend, "__func__", backend)
    if not hasattr(function, "__code__"):  # an object: its class says what a call of it does
        function = vars(type(backend)).get("__call__")
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType):
        yield code


def _all_codes(backends: Iterable[Any]) -> Iterator[CodeType]:
    for backend in backends:
        yield from codes_of(backend)


def _name_of(backend: Any) -> str:
    inner = getattr(backend, "compiler_fn", backend)
    name = getattr(inner, "backend_name", None) or getattr(backend, "compiler_name", None)
    if getattr(inner, "__module__", None) == COMPILING[0].rstrip(":"):
        return DYNAMOS_CAPTURE
    if compilers_of(inner) and name == getattr(inner, "__name__", None):
        return "aot_autograd(...)"
    if isinstance(name, str) and not name.startswith("<"):
        return name
    return str(getattr(inner, "__qualname__", None) or type(inner).__qualname__)


#: The name of the backend that Dynamo uses to capture a graph, which no test named.
DYNAMOS_CAPTURE = "a capture by Dynamo"


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
            with before.without_imports():
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
