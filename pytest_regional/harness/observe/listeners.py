"""Listeners that see graphs and partitions while they compile, graphs being observed, and cache events."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from pytest_regional._torch import dynamo
from pytest_regional._torch.inductor import RawLaunch
from pytest_regional.harness.observe import annotated
from pytest_regional.harness.observe.annotated import RegionId
from pytest_regional.harness.pre_grad_passes import DynamoGraph
from pytest_regional.harness.record import GraphRecord, RegionRecord


class CompileListener:
    """Sees graphs and regions at the moment they compile; append one to ``Observer.listeners``.

    ``compiling_graph`` and ``compiling_region`` return a context manager that is entered before the compile, while the
    settings of the compile hold, and gives a function that is called with what the compile returned.
    """

    def backend_called(self, gm: Any) -> None:
        """See the backend under test get a graph of Dynamo's, before it looks into a cache."""

    def compiling_graph(self, kind: str, gm: Any) -> AbstractContextManager[Callable[[Any], None]]:
        """See a compiler of the backend get a graph of AOTAutograd's, which it may rewrite."""
        return contextlib.nullcontext(_ignore)

    def compiling_region(self, gm: Any, inputs: Sequence[Any]) -> AbstractContextManager[Callable[[Any], None]]:
        """See a subgraph handed to Inductor on its own; Inductor may consume it."""
        return contextlib.nullcontext(_ignore)

    def code_generated(self, launches: Sequence[RawLaunch]) -> None:
        """See the launches, in order, of code that Inductor generated for the region or graph being compiled."""


def _ignore(result: Any) -> None:
    """Do nothing with what a compile returned."""


def compile_graph_observed(
    listeners: Sequence[CompileListener], kind: str, gm: Any, compile_graph: Callable[[], Any]
) -> Any:
    """Return what ``compile_graph`` returns, after all ``listeners`` have seen it."""
    return _observed([listener.compiling_graph(kind, gm) for listener in listeners], compile_graph)


def compile_region_observed(
    listeners: Sequence[CompileListener], gm: Any, inputs: Sequence[Any], compile_region: Callable[[], Any]
) -> Any:
    """Return what ``compile_region`` returns, after all ``listeners`` have seen it."""
    return _observed([listener.compiling_region(gm, inputs) for listener in listeners], compile_region)


def _observed(
    contexts: Sequence[AbstractContextManager[Callable[[Any], None]]], compile_something: Callable[[], Any]
) -> Any:
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
OUTCOMES = {
    "hit": "cache_hits",
    "miss": "cache_misses",
    "bypass": "cache_bypasses",
    "saved": "cache_saves",
}


def moved(before: Mapping[str, int]) -> Counter[str]:
    """Return by how much PyTorch's counters of outcomes moved since ``before``, a copy of PyTorch's own."""
    now = dynamo.aot_counters()
    names = {outcome: f"autograd_cache_{outcome}" for outcome in OUTCOMES}
    return Counter({outcome: now.get(name, 0) - before.get(name, 0) for outcome, name in names.items()})


def with_reason(what: str, reason: str) -> str:
    """Return the cause of a miss; the reason is empty where nothing is stored."""
    return f"{what}; {reason}" if reason else what


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
                said = (reason or "no reason given") if outcome == "bypass" else with_reason("the whole graph", reason)
                yield outcome, f"cache of the backend: {said}"

    def reset_baseline(self) -> None:
        """Move the baseline to the current counter values."""
        self._baseline = self.mark()

    def unreported(self) -> Iterator[tuple[str, str]]:
        """Yield the events since the baseline, and move it; to be called before PyTorch's counters are cleared."""
        yield from self.since(self._baseline)
        self.reset_baseline()
