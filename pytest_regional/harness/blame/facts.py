"""What a backend did with a program, stage by stage, to be compared with what another one did with the same."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.fx.node import map_arg

from pytest_regional._base.cache_keys import KeyTexts
from pytest_regional._base.text import plural
from pytest_regional._torch import fx_graphs
from pytest_regional._torch.config import INDUCTOR, config_values
from pytest_regional._torch.inductor import RawLaunch, is_region_artifact
from pytest_regional.harness.blame.culprit import Layer
from pytest_regional.harness.cache_keys import ingredients_of
from pytest_regional.harness.observe import annotated
from pytest_regional.harness.observe.listeners import CompileListener
from pytest_regional.harness.record import GraphRecord


@dataclass
class CompileFacts(CompileListener):
    """What was seen of all compiles of one run of a check."""

    events: tuple[str, ...] = ()  # runs of passes and lookups in caches, by the name of the counter, in order
    counts: Counter[str] = field(default_factory=Counter)  # how often the other counters moved
    cache_answered: bool = False  # whether a cache did, of whole graphs or of regions, whosever it is
    graphs: tuple[GraphRecord, ...] = ()  # the graphs that AOTAutograd made
    #: for each of them that shows it, the operators that stay eager
    eager: list[Counter[str]] = field(default_factory=list)
    #: for each of them that shows it, the regions whose code it calls, in order
    calls: list[list[str]] = field(default_factory=list)
    #: the graphs that Inductor got on their own, in order
    handed_over: list[tuple[str, ...]] = field(default_factory=list)
    settings: list[dict[str, Any]] = field(default_factory=list)  # Inductor's settings at each of those compiles
    #: of each code generation, the operators behind each kernel, in order
    launches: list[tuple[tuple[str, ...], ...]] = field(default_factory=list)
    ingredients: list[KeyTexts] = field(default_factory=list)  # of each call of the backend, what the code depends on

    def note(self, events: Iterable[str], graphs: tuple[GraphRecord, ...], supports: Callable[[str], object]) -> None:
        """Note what is known at the end: steps of counters only of what the backend under test claims to do."""
        events = tuple(events)
        self.cache_answered = "cache_hits" in events or "region_cache_hits" in events
        claimed = [name for name in events if name in _STAGES and supports(_STAGES[name][1])]
        self.events = tuple(name for name in claimed if _STAGES[name][0] in _IN_ORDER)
        self.counts = Counter(name for name in claimed if _STAGES[name][0] not in _IN_ORDER)
        self.graphs = graphs

    def backend_called(self, gm: Any) -> None:
        """Note what the code depends on."""
        self.ingredients.append(ingredients_of(gm))

    @contextlib.contextmanager
    def compiling_graph(self, kind: str, gm: Any) -> Iterator[Callable[[Any], None]]:
        """Note what the compiled graph calls, and what it runs eagerly."""

        def finish(result: Any) -> None:
            made = fx_graphs.graph_module_in(result)
            if isinstance(made, torch.fx.GraphModule):
                nodes = [node for node in annotated.nodes_of(made) if not is_region_artifact(node.target)]
                self.eager.append(Counter(filter(None, map(annotated.operator_of, nodes))))
                self.calls.append([name for name, _ in annotated.compiled_calls_in(result)])

        yield finish

    @contextlib.contextmanager
    def compiling_region(self, gm: Any, inputs: Sequence[Any]) -> Iterator[Callable[[Any], None]]:
        """Note a graph that Inductor gets, before Inductor changes it."""
        self.handed_over.append(tuple(_lines(gm.graph)))
        self.settings.append(config_values(INDUCTOR))
        yield lambda result: None

    def code_generated(self, launches: Sequence[RawLaunch]) -> None:
        """Note the operators behind each kernel."""
        behind = (tuple(str(node) for _, nodes in launch.buffers for node in nodes) for launch in launches)
        self.launches.append(tuple(behind))


def _lines(graph: Any) -> Iterator[str]:
    """Yield a line for each node: operator and operands, by place instead of name; of inputs what they are."""
    place = {node: f"%{number}" for number, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        target = node.target if node.op == "call_function" else node.op
        operands = map_arg((node.args, dict(node.kwargs)), place.__getitem__)
        value = node.meta.get("val")
        is_input = node.op == "placeholder" and isinstance(value, torch.Tensor) and value.layout == torch.strided
        line = f"{target} {operands}"
        yield f"{line} {value.dtype} {[*value.shape]} {[*value.stride()]}" if is_input else line


class Difference(NamedTuple):
    """The first stage at which two backends did something else: what was done, and what the other backend did."""

    layer: Layer
    sentence: str


def first_difference(
    ours: CompileFacts, theirs: CompileFacts, *, of_compile: bool, of_counters: bool = False
) -> Difference | None:
    """Return the first difference, in the order in which a backend works; ``None`` where there is none.

    With ``of_compile`` the check may be about the compile itself: values are no other for another count, unless a cache
    answered. With ``of_counters`` it fails for a counter: then also what should have come next is a difference.
    """
    of_compile = of_compile or "cache_hits" in ours.events
    found = next(_differences(ours, theirs, of_compile=of_compile), None)
    here, there = ours.events, theirs.events[len(ours.events) :]
    if found is None and of_counters and there and theirs.events[: len(here)] == here:
        said = f"nothing after {', '.join(here) or 'the start'}, where there is {there[0]}"
        return Difference(_STAGES[there[0]][0], said)
    return found


#: The stage that a counter is of, and the capability of a backend that moves it.
_STAGES: Mapping[str, tuple[Layer, str]] = {
    "pre_grad_calls": ("pass", "pre_grad_passes"),
    "region_pre_grad_calls": ("pass", "pre_grad_passes"),
    "cache_hits": ("cache", "outer_cache"),
    "cache_misses": ("cache", "outer_cache"),
    "cache_bypasses": ("cache", "outer_cache"),
    "cache_saves": ("cache", "outer_cache"),
    "region_compiles": ("sharing", "share_identical"),
    "fallbacks": ("region", "regions"),
}

#: Stages whose events are compared in their order: they come before all others.
_IN_ORDER = ("pass", "cache")


def _differences(ours: CompileFacts, theirs: CompileFacts, *, of_compile: bool) -> Iterator[Difference]:
    # The first event that is another one; a check that fails early has seen fewer, which is no difference.
    for number, (here, there) in enumerate(itertools.zip_longest(ours.events, theirs.events) if of_compile else ()):
        if here is not None and here != there:
            of_passes = any(_STAGES[name][0] == "pass" for name in (here, there) if name)
            after = f" after {', '.join(ours.events[:number])}" if number else ""
            said = f"{here}{after}, where there is {there or 'nothing more'}"
            yield Difference("pass" if of_passes else "cache", said)
            break
    if any(graph.ops != other.ops for graph, other in zip(ours.graphs, theirs.graphs, strict=False)):
        return  # they were given other graphs: one of them does without AOTAutograd
    yield from _partitions(ours, theirs)
    yield from _inside(ours, theirs)
    yield from _order(ours, theirs)
    if of_compile and len(ours.graphs) >= len(theirs.graphs):
        for name, (layer, _) in _STAGES.items():
            if ours.counts[name] != theirs.counts[name]:
                yield Difference(layer, f"{name}: {ours.counts[name]}, there {theirs.counts[name]}")


def _partitions(ours: CompileFacts, theirs: CompileFacts) -> Iterator[Difference]:
    for graph, other in zip(ours.graphs, theirs.graphs, strict=False):
        partitions = {region.name: region for region in other.regions}
        for region in graph.regions:
            same = partitions.get(region.name)
            if same and same.partitions != region.partitions:
                here = f"region {region.name!r} of the {region.graph} graph: {plural(region.partitions, 'partition')}"
                yield Difference("partitioning", f"{here}, there {same.partitions}")
    for number, (eager, other_eager) in enumerate(zip(ours.eager, theirs.eager, strict=False)):
        if eager != other_eager:
            more, less = eager - other_eager, other_eager - eager
            sides = (("here", more), ("there", less))
            said = [f"eager {where} {', '.join(sorted(names))}" for where, names in sides if names]
            moved = more.keys() <= _operators(theirs).keys() and less.keys() <= _operators(ours).keys()
            yield Difference("partitioning" if moved else "backend", f"graph {number}: {', '.join(said)}")


def _inside(ours: CompileFacts, theirs: CompileFacts) -> Iterator[Difference]:
    """Yield what is different in what Inductor gets: its graphs, how often it gets one, settings."""
    graphs, other_graphs = Counter(ours.handed_over), Counter(theirs.handed_over)
    gets = f"Inductor gets {plural(len(ours.handed_over), 'graph')}, there {len(theirs.handed_over)}"
    if len(ours.handed_over) != len(theirs.handed_over) and _operators(ours) == _operators(theirs):
        yield Difference("partitioning", f"{gets}, of the same operators")
    for graph in graphs:
        if graph not in other_graphs:
            known = set().union(*other_graphs)
            odd = next((line for line in graph if line not in known), graph[-1] if graph else "")
            yield Difference("extraction", f"a graph that Inductor gets here and not there, with {odd}")
    for graph in other_graphs if len(ours.graphs) >= len(theirs.graphs) else ():
        if graph not in graphs:
            yield Difference("extraction", f"a graph of {plural(len(graph), 'node')} that Inductor gets there only")
    if len(ours.handed_over) != len(theirs.handed_over) and len(ours.graphs) >= len(theirs.graphs):
        yield Difference("sharing", f"{gets}, and the same ones")
    for number, (settings, others) in enumerate(zip(ours.settings, theirs.settings, strict=False)):
        for name, value in settings.items():
            here, there = _plain(value), _plain(others.get(name, value))
            if here != there:
                yield Difference("settings", f"graph {number} for Inductor: {name}={here!r}, there {there!r}")


def _plain(value: Any) -> Any:
    """Return a setting for comparison: of an object, such as a pass, what it is, as each compile may make a new one."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if isinstance(value, bool | int | float | str | None) else type(value).__qualname__


def _operators(facts: CompileFacts) -> Counter[str]:
    """Return how often each operator is in all graphs that Inductor gets."""
    named = (line.partition(" ")[0] for graph in facts.handed_over for line in graph)
    return Counter(name for name in named if "." in name)


def _order(ours: CompileFacts, theirs: CompileFacts) -> Iterator[Difference]:
    for calls, other_calls in zip(ours.calls, theirs.calls, strict=False):
        if calls != other_calls:
            yield Difference("order", f"regions called: {', '.join(calls)}, there {', '.join(other_calls)}")
    if ours.handed_over != theirs.handed_over and Counter(ours.handed_over) == Counter(theirs.handed_over):
        yield Difference("order", "Inductor gets the same graphs in another order")
    for launches, others in zip(ours.launches, theirs.launches, strict=False):
        if launches != others:
            here, there = (
                " then ".join("+".join(nodes) or "nothing" for nodes in kernels) for kernels in (launches, others)
            )
            yield Difference("order", f"kernels compute {here}, there {there}")
