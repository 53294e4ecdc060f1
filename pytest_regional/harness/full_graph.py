"""The full-graph pipeline for tests: captured graphs, with the backend under test as the last pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pytest_regional.backends import registry
from pytest_regional.backends.spec import BackendSpec


class NoGraphPassError(LookupError):
    """The backend under test does not say how it compiles a graph that was captured ahead of time."""


class FullGraph:
    """Capture, partition and compile, with the backend under test at the end of the list of passes.

    All names of ``pytest_regional.reference.pipeline`` are attributes: ``capture``, ``partition``, ``PassPipeline``,
    ``load`` and so on; ``passes`` is ``pytest_regional.reference.passes``.

    Attributes:
        terminal: the pass that compiles a graph, made anew at each look.
    """

    def __init__(self, spec: BackendSpec) -> None:
        self._spec = spec
        self._pipeline, self.passes = registry.full_graph_modules()

    @property
    def terminal(self) -> Any:
        """The backend's pass, named after the backend unless it has a name."""
        if self._spec.graph_pass is None:
            raise NoGraphPassError(_missing(self._spec))
        made = self._spec.graph_pass()
        if getattr(made, "terminal", False):
            return made
        return self._pipeline.graph_pass(name=self._spec.name, terminal=True)(made)

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
    """Return the pipeline for a backend.

    Raises:
        NoGraphPassError: it compiles for Dynamo alone.
    """
    if spec.graph_pass is None:
        raise NoGraphPassError(_missing(spec))
    return FullGraph(spec)


def _missing(spec: BackendSpec) -> str:
    return (
        f"backend {spec.name!r} compiles what Dynamo hands it and nothing else: its BackendSpec gives no graph_pass. "
        f"Give one, or mark the test regional_compile(requires=('full_graph',)), which skips it there."
    )
