"""What ``torch.compile`` is given for the backend under test: one Dynamo backend for each set of options."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from pytest_regional._torch.backends import invalid_backend_error, registered_backend
from pytest_regional._torch.compiled_callables import to_compile
from pytest_regional.backends.spec import BackendSpec
from pytest_regional.harness import annotated
from pytest_regional.harness.observer import Observer
from pytest_regional.harness.options import CompileOptions
from pytest_regional.harness.whose import Ownership


class CompilesWithBackend:
    """The part of :class:`Regional` that makes Dynamo backends of the specification, and watches them."""

    spec: BackendSpec
    options: CompileOptions
    observer: Observer

    def _start_observing(self) -> None:
        self._whose = Ownership(self.spec)
        self._backends: dict[Any, Callable[..., Any]] = {}
        self._current = threading.local()
        self.observer = Observer(self._capture_scope, self._whose, self._named)

    def compile_with(self, fn: Any, options: CompileOptions, eager_regions: frozenset[str] = frozenset()) -> Any:
        """Compile with explicit options; regions named in ``eager_regions`` lose their annotation first."""
        import torch

        with options.scope(self.spec.compile_options):
            # A wrong setting is an error here, at the user's call, not deep inside the first compile.
            backend = self._backend(options, eager_regions)
        return torch.compile(to_compile(fn), backend=backend, dynamic=options.dynamic, fullgraph=options.fullgraph)

    @property
    def dynamo_backend(self) -> Callable[..., Any]:
        """The backend under test for ``torch.compile(fn, backend=...)``, with the settings of the marker.

        While the harness is active :attr:`backend`, its name, does as well, unless PyTorch has a backend of that name.
        """
        return self._backend(self.options, frozenset())

    def _named(self, look_up: Callable[[Any], Any], backend: Any) -> Any:
        """Find the Dynamo backend that ``torch.compile`` was given; a name that PyTorch has not may be ours."""
        if backend != self.spec.name or getattr(self._current, "looking_up", False):
            return look_up(backend)
        try:
            return look_up(backend)
        except invalid_backend_error():
            return self.dynamo_backend

    def _backend(self, options: CompileOptions, eager_regions: frozenset[str]) -> Callable[..., Any]:
        # Dynamo tells backends apart by identity: the same options must give the same object, or it recompiles.
        identity = (options.identity(), eager_regions)
        if identity not in self._backends:
            self._backends[identity] = self._make_backend(options, eager_regions)
        return self._backends[identity]

    def _make_backend(self, options: CompileOptions, eager_regions: frozenset[str]) -> Callable[..., Any]:
        inner, taken = self._inner_backend(), self.spec.compile_options
        keywords = options.backend_keywords(taken)

        def backend_under_test(gm: Any, example_inputs: Any) -> Any:
            for region in eager_regions:
                annotated.strip_region(gm, region)
            with options.scope(taken), self._compiling_with(options):
                self.observer.note_passes()
                return inner(gm, example_inputs, **keywords)

        self._whose.add(backend_under_test, self.spec.name)
        return backend_under_test

    def _inner_backend(self) -> Callable[..., Any]:
        made = self.spec.factory()
        if not isinstance(made, str):
            return made
        self._current.looking_up = True  # by its own name, it must not find what is made of it here
        try:
            return registered_backend(made)
        finally:
            self._current.looking_up = False

    @contextlib.contextmanager
    def _compiling_with(self, options: CompileOptions) -> Iterator[None]:
        outer = getattr(self._current, "options", None)
        self._current.options = options
        try:
            yield
        finally:
            self._current.options = outer

    def _capture_scope(self) -> Callable[[], contextlib.AbstractContextManager[None]]:
        options: CompileOptions | None = getattr(self._current, "options", None)
        return functools.partial(options.scope, self.spec.compile_options) if options else contextlib.nullcontext
