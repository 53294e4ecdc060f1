"""Listeners that see graphs and partitions while they compile; graphs as observed and as drawn; and cache events."""

from __future__ import annotations

import contextlib
import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_regional._torch import dynamo
from pytest_regional._torch.inductor import RawLaunch
from pytest_regional.harness.observe import annotated
from pytest_regional.harness.observe.annotated import RegionId
from pytest_regional.harness.pre_grad_passes import DynamoGraph
from pytest_regional.harness.record import GraphRecord, RegionRecord

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node


class CompileListener:
    """Sees graphs and regions at the moment they compile; append one to ``Observer.listeners``.

    ``compiling_graph`` and ``compiling_region`` return a context manager that is entered before the compile, while the
    settings of the compile hold, and gives a function that is called with what the compile returned.
    """

    def backend_called(self, gm: Any) -> None:
        """See the backend under test get a graph of Dynamo's, before it looks into a cache."""

    def compiling_graph(self, kind: str, gm: Any) -> AbstractContextManager[Callable[[Any], None]]:
        """See a compiler of the backend get a graph of AOTAutograd's, which it may rewrite."""
        return contextlib.nullcontext(lambda result: None)

    def compiling_region(self, gm: Any, inputs: Sequence[Any]) -> AbstractContextManager[Callable[[Any], None]]:
        """See a subgraph handed to Inductor on its own; Inductor may consume it."""
        return contextlib.nullcontext(lambda result: None)

    def code_generated(self, launches: Sequence[RawLaunch]) -> None:
        """See the launches, in order, of code that Inductor generated for the region or graph being compiled."""


def observed(
    contexts: Sequence[AbstractContextManager[Callable[[Any], None]]], compile_something: Callable[[], Any]
) -> Any:
    """Return what ``compile_something`` returns, after the listeners whose ``contexts`` these are have seen it."""
    with contextlib.ExitStack() as stack:
        report = [stack.enter_context(context) for context in contexts]
        result = compile_something()
        for report_to in report:
            report_to(result)
    return result


@dataclass
class ObservedGraph:
    """A graph being observed; becomes a :class:`GraphRecord`.

    ``other`` names the Dynamo backend, if it is not the one under test.
    """

    kind: str
    ops: tuple[str, ...]
    text: str
    regions: dict[RegionId, tuple[tuple[str, ...], dict[str, Any]]]
    partitions: dict[RegionId, int] = field(default_factory=dict)
    other: str = ""

    @staticmethod
    def of(kind: str, gm: Any) -> ObservedGraph:
        """Look at ``gm``."""
        found = annotated.regions_in(gm)
        regions = {
            region: (tuple(filter(None, map(annotated.operator_of, nodes))), annotated.configs_of(nodes[0]))
            for region, nodes in found.items()
        }
        ops = tuple(filter(None, map(annotated.operator_of, annotated.nodes_of(gm))))
        return ObservedGraph(kind, ops, gm.print_readable(print_output=False), regions)

    def record(self) -> GraphRecord:
        """Return what is known of it now."""
        regions = tuple(
            RegionRecord(region[0], self.kind, ops, configs, self.partitions.get(region, 0))
            for region, (ops, configs) in self.regions.items()
        )
        return GraphRecord(self.kind, self.ops, self.text, regions)

    def add_calls(self, calls: list[RegionId]) -> None:
        """Note compiled calls that the compiled graph holds, one for each partition."""
        for region, seen in Counter(calls).items():
            if region in self.regions:
                self.partitions[region] = max(seen, self.partitions.get(region, 0))

    def add_partition(self, regions: tuple[RegionId, ...]) -> None:
        """Note that a partition of these regions was handed to Inductor."""
        for region in regions:
            if region in self.regions:
                self.partitions[region] = self.partitions.get(region, 0) + 1


@dataclass
class Frame:
    """One level of the nesting on one thread; ``other`` names the Dynamo backend, if not the one under test."""

    kind: str
    graph: ObservedGraph | None = None
    regions: tuple[RegionId, ...] = ()
    lookup_pending: bool = False
    made_graph: bool = False
    gm: Any = None
    module: Any = None
    dynamo_graph: DynamoGraph = field(default_factory=DynamoGraph)
    other: str = ""

    def __str__(self) -> str:
        names = ", ".join(dict.fromkeys(name for name, _ in self.regions))
        where = self.graph.kind if self.graph else "whole Dynamo"
        return f"region {names} of the {where} graph" if names else f"the {where} graph"


#: Our counter for each of PyTorch's.
OUTCOMES = {"hit": "cache_hits", "miss": "cache_misses", "bypass": "cache_bypasses", "saved": "cache_saves"}


def moved(before: Mapping[str, int]) -> Counter[str]:
    """Return by how much PyTorch's counters of outcomes moved since ``before``, a copy of PyTorch's own."""
    now = dynamo.aot_counters()
    names = {outcome: f"autograd_cache_{outcome}" for outcome in OUTCOMES}
    return Counter({outcome: now.get(name, 0) - before.get(name, 0) for outcome, name in names.items()})


def _reasons() -> dict[str, Counter[str]]:
    return {outcome: Counter(dynamo.cache_reasons(outcome)) for outcome in ("bypass", "miss")}


class BackendCacheEvents:
    """Cache events that only PyTorch's counters report: a cache of the backend's own, which no patch point sees."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.reset_baseline()

    def record_outcomes(self, outcomes: Counter[str]) -> None:
        """Record outcomes that a patch point has seen."""
        with self._lock:
            self._seen.update(outcomes)

    def mark(self) -> tuple[dict[str, int], Counter[str], dict[str, Counter[str]]]:
        """Return a position to pass to :meth:`since`."""
        with self._lock:
            return dict(dynamo.aot_counters()), self._seen.copy(), _reasons()

    def since(self, mark: tuple[dict[str, int], Counter[str], dict[str, Counter[str]]]) -> Iterator[tuple[str, str]]:
        """Yield outcome and cause of events since ``mark`` that no patch point saw and that were not yielded before."""
        counters, seen, reasons = mark
        with self._lock:
            own = moved(counters) - (self._seen - seen)
            self._seen.update(own)
        given = {outcome: (now - reasons[outcome]).elements() for outcome, now in _reasons().items()}
        for outcome in OUTCOMES:
            for _ in range(own[outcome]):
                reason = next(given[outcome], "") if outcome in given else ""
                if outcome == "bypass":
                    said = reason or "no reason given"
                else:  # a miss has no reason where nothing is stored
                    said = f"the whole graph; {reason}" if reason else "the whole graph"
                yield outcome, f"cache of the backend: {said}"

    def reset_baseline(self) -> None:
        """Move the baseline to the current counter values."""
        self._baseline = self.mark()

    def unreported(self) -> Iterator[tuple[str, str]]:
        """Yield the events since the baseline, and move it; to be called before PyTorch's counters are cleared."""
        yield from self.since(self._baseline)
        self.reset_baseline()


#: A line of a stack trace that PyTorch keeps with a node.
_FRAME = re.compile(r'^\s*File "(.*)", line (\d+), in (.*)$', re.MULTILINE)


@dataclass(frozen=True)
class NodeRecord:
    """One node of a graph that AOTAutograd made."""

    name: str
    #: the operator such as ``aten.mul.Tensor``, or ``input``, ``output``, ``getitem``; of an ordered operator that it
    #: is, without ``control_deps``
    op: str
    region: str | None  # the name of its region, ``None`` outside all
    inputs: tuple[str, ...]  # names of the nodes whose values it takes
    source: str = ""  # where the program calls it, such as ``model.py:12 in forward``; empty when unknown


@dataclass
class DrawnGraph:
    """A graph, and which of its nodes were handed to Inductor together."""

    kind: str  # ``"inference"``, ``"forward"`` or ``"backward"``
    nodes: tuple[NodeRecord, ...]  # in graph order; sub-graphs are not among them
    #: names of the nodes of each subgraph that was handed to Inductor on its own, as named there
    partitions: list[frozenset[str]] = field(default_factory=list)
    #: by name of a node, names of those that it waits for though it takes no value of them: by ``control_deps`` in the
    #: graph as AOTAutograd gave it, or in a subgraph handed to Inductor; and the first node of a region for the last of
    #: one that its annotation names (``region(after=...)``; the other way round in the backward)
    after: dict[str, list[str]] = field(default_factory=dict)

    def partition_of(self, node: NodeRecord) -> int | None:
        """Return the number of the partition that ``node`` became part of, ``None`` if none or unknown."""
        return next((number for number, names in enumerate(self.partitions) if node.name in names), None)

    def note_order(self, gm: GraphModule) -> None:
        """Add the order edges in ``gm``; nodes that wait keep their names."""
        for node in gm.graph.nodes:
            if _is_ordered(node):
                for one in node.args[0]:
                    self._waits(node, one)

    def note_order_of_regions(self, gm: GraphModule) -> None:
        """Add the edges that annotations ask for."""
        nodes: dict[str, list[Node]] = {}
        wanted: dict[tuple[str, str], None] = {}
        for node in gm.graph.nodes:
            region = annotated.region_of(node)
            if region is not None and node.op == "call_function":
                nodes.setdefault(region[0], []).append(node)
                wanted.update(dict.fromkeys((str(before), region[0]) for before in annotated.regions_before(node)))
        for before, after in wanted:
            first, second = (after, before) if self.kind == "backward" else (before, after)
            if first in nodes and second in nodes:
                self._waits(nodes[second][0], nodes[first][-1])

    def _waits(self, node: Node, before: Node) -> None:
        known = self.after.setdefault(node.name, [])
        if before.name not in known:
            known.append(before.name)


class GraphDrawer(CompileListener):
    """Keeps the last graphs that are compiled while it is among ``Observer.listeners``, and counts them all."""

    def __init__(self, kept: int) -> None:
        self.graphs: deque[DrawnGraph] = deque(maxlen=kept)
        self.count = 0
        self._compiling = threading.local()

    @contextlib.contextmanager
    def compiling_graph(self, kind: str, gm: Any) -> Iterator[Callable[[Any], None]]:
        """Draw a graph before its compiler rewrites it."""
        outer = getattr(self._compiling, "graph", None)
        self._compiling.graph = drawn = DrawnGraph(kind, tuple(_nodes(gm)))
        drawn.note_order(gm)
        drawn.note_order_of_regions(gm)
        self.graphs.append(drawn)
        self.count += 1
        try:
            yield lambda result: None
        finally:
            self._compiling.graph = outer

    @contextlib.contextmanager
    def compiling_region(self, gm: Any, inputs: Sequence[Any]) -> Iterator[Callable[[Any], None]]:
        """Note which nodes became a partition."""
        graph: DrawnGraph | None = getattr(self._compiling, "graph", None)
        if graph is not None:
            graph.partitions.append(frozenset(node.name for node in gm.graph.nodes if node.op == "call_function"))
            graph.note_order(gm)
        yield lambda result: None


def _nodes(gm: GraphModule) -> Iterator[NodeRecord]:
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            continue  # a sub-graph or a constant: its user shows it
        waits = {one.name for one in node.args[0]} if _is_ordered(node) else ()
        inputs = tuple(one.name for one in node.all_input_nodes if one.op != "get_attr" and one.name not in waits)
        region = annotated.region_of(node)
        yield NodeRecord(node.name, _op(gm, node), region[0] if region else None, inputs, _source(node))


def _is_ordered(node: Node) -> bool:
    return node.op == "call_function" and str(node.target) == "control_deps"


def _op(gm: GraphModule, node: Node) -> str:
    if node.op in ("placeholder", "output"):
        return {"placeholder": "input", "output": "output"}[node.op]
    if _is_ordered(node):
        body = gm.get_submodule(str(node.args[1].target))
        operators = [annotated.operator_of(inner) for inner in annotated.nodes_of(body)]
        return ", ".join(filter(None, operators)) or "control_deps"
    return annotated.operator_of(node) or str(getattr(node.target, "__name__", node.target))


def _source(node: Node) -> str:
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return ""
    file, line, function = frames[-1]
    return f"{file.rpartition('/')[2]}:{line} in {function}"
