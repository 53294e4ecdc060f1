"""Plain records of what a compile did: graphs, regions, generated code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_regional.harness.codegen import CodeAssertions, Events, LaunchOrigin, events_of, origins_kept
from pytest_regional.harness.counters import Counters

if TYPE_CHECKING:
    from pytest_regional.harness.observe.trace import CompileTrace

DEFAULT_REGION = "default"


@dataclass(frozen=True)
class RegionRecord:
    """All nodes of one graph with the same region key.

    Attributes:
        name: the region id as text, ``"default"`` when the annotation names none.
        graph: ``"inference"``, ``"forward"`` or ``"backward"``.
        ops: the ATen operators of the region in graph order, such as ``"aten.mul.Tensor"``.
        configs: the Inductor configuration of the annotation, ``{}`` when it has none.
        partitions: how many subgraphs holding nodes of this region were handed to Inductor; 0 when it stayed eager.
    """

    name: str
    graph: str
    ops: tuple[str, ...]
    configs: Mapping[str, Any]
    partitions: int


@dataclass(frozen=True)
class GraphRecord:
    """One graph handed to the backend's compilers.

    Attributes:
        kind: ``"inference"``, ``"forward"`` or ``"backward"``.
        ops: the operators of the whole graph in order.
        text: the graph as readable Python.
        regions: its regions in order of first appearance.
    """

    kind: str
    ops: tuple[str, ...]
    text: str
    regions: tuple[RegionRecord, ...]


@dataclass(frozen=True)
class CompileTime:
    """How long one Inductor code generation took, with the compilers that it called: ``what`` it was of, in words."""

    seconds: float
    what: str


@dataclass(frozen=True)
class GeneratedSource:
    """The Python wrapper that Inductor generated (or loaded) for one subgraph."""

    graph: str  # ``"inference"``, ``"forward"``, ``"backward"``, or ``"unknown"`` for code loaded with a whole result
    regions: tuple[str, ...]  # names of the regions whose nodes the subgraph holds
    text: str  # the source
    loaded: bool  # whether a cache gave it rather than a code generation
    #: which operators are behind each kernel launch, where this process generated the code; else None
    origins: tuple[LaunchOrigin, ...] | None = field(default=None, repr=False)

    @property
    def events(self) -> Events:
        """What the code does, in execution order; ``str()`` of it is a table."""
        return events_of(self.text, origins_kept(self.text) if self.origins is None else self.origins)


@dataclass(frozen=True)
class GeneratedCode(CodeAssertions):
    """Everything Inductor generated in one run, in order; :class:`CodeAssertions` lists what can be asserted of it."""

    sources: tuple[GeneratedSource, ...] = ()

    @property
    def forward(self) -> str:
        """The code of inference and forward graphs."""
        return "\n".join(source.text for source in self.sources if source.graph != "backward")

    @property
    def backward(self) -> str:
        """The code of backward graphs."""
        return "\n".join(source.text for source in self.sources if source.graph == "backward")

    def __str__(self) -> str:
        return "\n".join(source.text for source in self.sources)

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and text in str(self)

    def __iter__(self) -> Iterator[GeneratedSource]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)


@dataclass(frozen=True)
class CompileRecord:
    """What :meth:`Regional.run` saw.

    Attributes:
        output: what the compiled program returned.
        graphs: the graphs in the order in which they were compiled.
        code: the generated code.
        counters: the counters moved by this run.
        trace: what goldens need besides.
    """

    output: Any
    graphs: tuple[GraphRecord, ...]
    code: GeneratedCode
    counters: Counters = field(repr=False)
    trace: CompileTrace | None = field(default=None, repr=False)

    @property
    def regions(self) -> tuple[RegionRecord, ...]:
        """The regions of all graphs, in order."""
        return tuple(region for graph in self.graphs for region in graph.regions)

    def region(self, name: str, graph: str | None = None) -> RegionRecord:
        """Return the only region called ``name`` (in ``graph``).

        Raises:
            LookupError: no region, or several, of that name; the message lists what is there.
        """
        found = [r for r in self.regions if r.name == name and graph in (None, r.graph)]
        if len(found) != 1:
            there = ", ".join(f"{r.name} ({r.graph})" for r in self.regions) or "none"
            within = "" if graph is None else f" in the {graph} graph"
            raise LookupError(f"{len(found)} regions match {name!r}{within}; there are: {there}")
        return found[0]
