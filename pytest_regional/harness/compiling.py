"""The Dynamo backends that ``torch.compile`` gets for the backend under test: one for each set of options."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.region import AnnotationError
from pytest_regional._torch.dynamo import annotation_mistake_in, invalid_backend_error, registered_backend, to_compile
from pytest_regional._torch.fx_graphs import flatten_with_path
from pytest_regional._torch.pass_forms import pass_name
from pytest_regional._torch.tracing import fake_mode_of, new_fake_mode, tracing, tracing_inputs
from pytest_regional.backends import registry
from pytest_regional.backends.spec import BackendSpec
from pytest_regional.harness.blame.culprit import Change
from pytest_regional.harness.observe import annotated
from pytest_regional.harness.observe.annotated import Ownership
from pytest_regional.harness.observe.listeners import observed
from pytest_regional.harness.observe.observer import Observer
from pytest_regional.harness.options import CompileOptions
from pytest_regional.harness.parity.execution import cotangents_for
from pytest_regional.harness.pre_grad_passes import runs_counted
from pytest_regional.harness.raised import wrapped_in

#: Outside of experiments; compared by identity, as an experiment may change nothing, too.
_NO_CHANGE = Change()


class CompilesWithBackend:
    """The part of :class:`Regional` that makes Dynamo backends from the specification and observes them."""

    _spec: BackendSpec
    _options: CompileOptions
    observer: Observer
    _programs: list[Any]

    def _start_observing(self) -> None:
        self._whose = Ownership(self._spec)
        self._backends: dict[Any, Callable[..., Any]] = {}
        self._current = threading.local()
        self._change = _NO_CHANGE
        self._passes_applied: tuple[str, ...] = ()
        self.observer = Observer(self._capture_scope, self._whose, self._named)

    def _compile_with(
        self, fn: Any, options: CompileOptions, eager_regions: frozenset[str] = frozenset(), *, apart: str = ""
    ) -> Any:
        """Compile with explicit options; regions named in ``eager_regions`` lose their annotation first.

        What is compiled with another word for ``apart`` is compiled again, whatever else is equal.
        """
        self._programs.append(fn)
        if not self._change.compiles:
            return to_compile(fn)
        options = replace(options, pre_grad_pass=self._passes_left(options.pre_grad_pass))
        with options.scope(self._spec.compile_options):
            # A wrong setting is an error here, at the user's call, not deep inside the first compile.
            backend = self._backend(options, eager_regions, apart)
        return torch.compile(to_compile(fn), backend=backend, dynamic=options.dynamic, fullgraph=options.fullgraph)

    def _compile_graph(self, gm: Any, inputs: Sequence[torch.Tensor], options: CompileOptions) -> Callable[..., Any]:
        """Hand a graph that did not come from Dynamo to the backend, as Dynamo would; sizes are constants."""
        backend = self._backend(options, frozenset())
        with tracing_inputs(inputs):
            compiled: Callable[..., Any] = self.observer.backend_call(gm, lambda: backend(gm, list(inputs)))
        return compiled

    def _compile_aten_graph(self, gm: Any, inputs: Sequence[Any]) -> Any:
        """Hand an ATen graph that did not come from AOTAutograd to the backend's graph pass; ``inputs`` are fake."""
        assert self._spec.graph_pass is not None, "mode 'aten' has checked it"
        graph_pass = self._spec.graph_pass()
        with tracing(fake_mode_of(inputs) or new_fake_mode()), torch.no_grad():
            contexts = [listener.compiling_graph("inference", gm) for listener in self.observer.listeners]
            return observed(contexts, lambda: graph_pass(gm, list(inputs)))

    @contextlib.contextmanager
    def _changed(self, change: Change) -> Iterator[None]:
        """Compile everything otherwise while the context lasts: an experiment of the search for a culprit."""
        outer, self._change = self._change, change
        spec, self._spec = self._spec, change.instead or self._spec
        self._passes_applied = ()
        try:
            with change.within():
                yield
        finally:
            self._change, self._spec = outer, spec

    @property
    def _experimenting(self) -> bool:
        """Whether an experiment runs: what fails in it is not followed up."""
        return self._change is not _NO_CHANGE

    def _passes_left(self, given: Any) -> Any:
        """Return the passes that the change at work does not leave out, in the form in which they were given."""
        if given is None:
            return None
        passes = list(given) if isinstance(given, list | tuple) else [given]
        self._passes_applied = tuple(map(pass_name, passes))
        left = [one for place, one in enumerate(passes) if place not in self._change.passes_left_out]
        if len(left) == len(passes):
            return given
        return left if isinstance(given, list | tuple) and left else next(iter(left), None)

    @property
    def dynamo_backend(self) -> Callable[..., Any]:
        """The backend under test for ``torch.compile(fn, backend=...)``, with the settings of the marker.

        While the harness is active, the name :attr:`backend` works too, unless PyTorch has a backend of that name.
        """
        return self._backend(self._options, frozenset())

    def _named(self, look_up: Callable[[Any], Any], backend: Any) -> Any:
        """Find the Dynamo backend for what ``torch.compile`` was given; a name that PyTorch lacks may be ours."""
        if backend != self._spec.name or getattr(self._current, "looking_up", False):
            return look_up(backend)
        try:
            return look_up(backend)
        except invalid_backend_error():
            return self.dynamo_backend

    def _backend(self, options: CompileOptions, eager_regions: frozenset[str], apart: str = "") -> Callable[..., Any]:
        # Dynamo tells backends apart by identity: the same options must give the same object, or it recompiles.
        identity = (options.identity(), eager_regions, apart, self._change)
        if identity in self._backends:
            return self._backends[identity]
        inner, taken = self._change.backend or self._inner_backend(options.partitioner), self._spec.compile_options
        keywords, left_eager = options.backend_keywords(taken), eager_regions | self._change.eager_regions

        def backend_under_test(gm: Any, example_inputs: Any) -> Any:
            for region in left_eager:
                annotated.strip_region(gm, region)
            outer, self._current.options = getattr(self._current, "options", None), options
            try:
                with options.scope(taken), runs_counted():
                    self.observer.note_passes()
                    return inner(gm, example_inputs, **keywords)
            finally:
                self._current.options = outer

        backend_under_test.__name__ = self._spec.name  # Dynamo's errors say it
        self._whose.add(backend_under_test, self._spec.name)
        self._backends[identity] = backend_under_test
        return backend_under_test

    def _inner_backend(self, partitioner: str | None) -> Callable[..., Any]:
        if partitioner is None:
            made = self._spec.factory()
        elif "partitioner" in self._spec.variants:
            made = self._spec.variants["partitioner"](partitioner)
        else:
            raise RegionalValueError(
                f"backend {self._spec.name!r} has no variant 'partitioner': its BackendSpec names none"
            )
        if not isinstance(made, str):
            return made
        self._current.looking_up = True  # by its own name, it must not find what is made of it here
        try:
            return registered_backend(made)
        finally:
            self._current.looking_up = False

    def _capture_scope(self) -> Callable[[], contextlib.AbstractContextManager[None]]:
        options: CompileOptions | None = getattr(self._current, "options", None)
        return functools.partial(options.scope, self._spec.compile_options) if options else contextlib.nullcontext


class FullGraph:
    """Capture, partition and compile, with the backend under test at the end of the list of passes.

    All names of ``pytest_regional.reference.pipeline`` are attributes: ``capture``, ``partition``, ``PassPipeline``,
    ``load`` and so on; ``passes`` is ``pytest_regional.reference.passes``.

    Attributes:
        terminal: the pass that compiles a graph, a new one at each access.
    """

    def __init__(self, spec: BackendSpec) -> None:
        self._spec = spec
        self._pipeline, self.passes = registry.full_graph_modules()

    @property
    def terminal(self) -> Any:
        """The backend's pass, named after the backend if it has no name."""
        assert self._spec.graph_pass is not None, "full_graph_of has checked it"
        made = self._spec.graph_pass()
        if getattr(made, "terminal", False):
            return made
        return self._pipeline.graph_pass(name=self._spec.name, terminal=True)(made)

    def ending_with(self, backend: str) -> FullGraph:
        """Return the pipeline of another backend: ``aot_eager`` compiles nothing, ``inductor`` the whole graph."""
        return full_graph_of(registry.resolve(backend))

    def compile(
        self,
        model: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        passes: Iterable[Any] = (),
        **options: Any,
    ) -> Any:
        """As ``pipeline.compile``, with the backend's pass behind ``passes``."""
        return self._pipeline.compile(model, args, kwargs, passes=[*passes, self.terminal], **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)


def full_graph_of(spec: BackendSpec) -> FullGraph:
    """Return the pipeline for a backend."""
    if spec.graph_pass is None:
        raise RegionalValueError(
            f"backend {spec.name!r} compiles only graphs from Dynamo: its BackendSpec has no graph_pass. Add one, or "
            f"mark the test regional_compile(requires=('full_graph',)) to skip it for this backend."
        )
    return FullGraph(spec)


def refuse_no_program(function: str, program: object) -> None:
    """Raise a TypeError where ``program`` is not callable, for example the result of a program."""
    if callable(program):
        return
    given = "a tensor" if isinstance(program, torch.Tensor) else f"of type {type(program).__name__}"
    raise TypeError(
        f"regional.{function} needs a function or module, and this is {given}. Give the program and its arguments, "
        f"not what it returns: {function}(program, x), not {function}(program(x))"
    )


def raise_annotation_error(error: BaseException | None) -> None:
    """Raise the :class:`AnnotationError` that ``error`` is, or that compilers wrapped into it, without their frames.

    The same for an annotation error that Dynamo raised while it traced the program.
    """
    for one in wrapped_in(error):
        if isinstance(one, AnnotationError):
            raise one.with_traceback(None) from None
        mistake = annotation_mistake_in(one)
        if mistake is not None:
            raise AnnotationError(mistake) from None


@contextlib.contextmanager
def annotation_errors_alone() -> Iterator[None]:
    """Raise an :class:`AnnotationError` unwrapped, however deep in a compile it arose."""
    try:
        yield
    except Exception as error:
        raise_annotation_error(error)
        raise


def backpropagate(output: Any, backward: Any, *, seed: int) -> None:
    """Backpropagate from ``output`` as ``backward`` says (see :meth:`Regional.run`); gradients land in ``.grad``."""
    if backward is False or not torch.is_grad_enabled():
        return
    leaves = [leaf for _, leaf in flatten_with_path(output)[0]]
    differentiable = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if callable(backward):
        torch.autograd.backward([backward(output)])
    elif differentiable:
        torch.autograd.backward(differentiable, cotangents_for(differentiable, backward, seed))
