"""The oracles ``plan`` (partitions), ``region_order`` (whole regions) and ``order`` (edges between operators).

For ``order``, random ``control_deps`` edges that contradict nothing are put into every graph before the backend gets
it, and each must be visible: the call that computes the one end stands before the call that computes the other, and
within one partition the first loop of the one before the first loop of the other. Where no value flows from the one
end to the other, one loop for both is a violation as well: only the edge asks for two. Half of the edges join such ends
in one region, since a partition of generated code is where an edge is lost most easily. Operators bear numbers in their
metadata meanwhile; an operator that Inductor merged into another bears none in the code, and its edges say nothing.
"""

from __future__ import annotations

import contextlib
import operator
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.node import map_arg

from pytest_regional._torch import fx_graphs, inductor
from pytest_regional._torch.inductor import RawLaunch
from pytest_regional._torch.operators import is_op_overload, op_name, schema_of
from pytest_regional.backends.ordering import add_control_deps
from pytest_regional.fuzz.oracles.example_run import ExampleRun, NoClaim, Oracle
from pytest_regional.fuzz.oracles.parity import mismatches_of, raise_failure
from pytest_regional.fuzz.oracles.watching import NodeInfo, WatchedGraph, WatchedPartition, graphs_of
from pytest_regional.fuzz.settings import INTERPRETED, MODES
from pytest_regional.harness.observe import annotated
from pytest_regional.harness.observe.annotated import RegionId
from pytest_regional.harness.observe.listeners import CompileListener


def check_plan(example: ExampleRun) -> None:
    """Raise where the partitions of a graph break one of the rules."""
    graphs = example.cold.watched.graphs
    if not any(graph.regions for graph in graphs):
        raise NoClaim("no graph holds a region")
    for graph in graphs:
        for rule in (_one_region_each, _nothing_else, _all_compiled, _as_few_as_possible):
            found = rule(example, graph)
            if found:
                origin, detail, region = found
                stage = "backward" if graph.kind == "backward" else "compile"
                raise example.violation("plan", stage, f"{graph.kind} graph: {detail}", origin=origin, region=region)
    _equal_partitions_once(example, graphs)


Broken = tuple[str, str, str | None] | None
"""Origin, detail and region of a violation."""


def _key_of(example: ExampleRun, region: RegionId) -> RegionId:
    """Return the part of a region key that the backend tells apart."""
    spec = example.regional._spec
    name, configs = region
    return name if spec.supports("region_ids") else "", configs if spec.supports("distinct_region_configs") else ""


def _one_region_each(example: ExampleRun, graph: WatchedGraph) -> Broken:
    for partition in graph.partitions:
        keys = {_key_of(example, region): region for region in partition.regions}
        if len(keys) > 1:
            named = " and ".join(_described(region) for region in keys.values())
            names = {name for name, _ in keys}
            origin = "a partition mixes regions" if len(names) > 1 else "a partition mixes configs of one region"
            return origin, f"one partition holds operators of {named}", partition.regions[0][0]
    return None


def _described(region: RegionId) -> str:
    name, configs = region
    return f"region {name!r}" + (f" with {configs}" if configs not in ("[]", "{}") else "")


def _nothing_else(example: ExampleRun, graph: WatchedGraph) -> Broken:
    for partition in graph.partitions:
        unmarked = [node for node in partition.nodes if node.operator and not node.region]
        strange = [node for node in unmarked if not node.sums_gradients]
        if strange:
            return (
                "an operator outside of all regions is compiled",
                f"{strange[0].operator} is in no region and was compiled with {list(partition.operators)}",
                partition.regions[0][0] if partition.regions else None,
            )
    return None


def _all_compiled(example: ExampleRun, graph: WatchedGraph) -> Broken:
    if not graph.shows:
        return None
    asked = _counted(node for node in graph.nodes if node.region)
    called = [example.cold.watched.artifacts.get(artifact) for artifact in graph.calls]
    if None in called:
        return "a call of something compiled elsewhere", "a region calls code that this compile did not make", None
    compiled = [node for partition in called if partition for node in partition.nodes if node.region]
    missing = asked - _counted(compiled) - Counter(graph.eager_views)
    extra = _counted(compiled) - asked
    if graph.eager:
        return "a region is silently eager", f"{graph.eager} are annotated and run eager", None
    if missing:
        return "an annotated operator is not compiled", f"annotated, but compiled nowhere: {dict(missing)}", None
    # A backend may add what only computes to a region, as a pass of its own; it may not take it from outside.
    taken = extra & (_counted(node for node in graph.nodes if not node.region) - Counter(graph.outside))
    if taken:
        return (
            "an operator outside of all regions is compiled",
            f"in no region of the graph, but compiled with one: {dict(taken)}",
            None,
        )
    twice = sorted(extra.keys() & {node.operator for node in compiled if node.effect})
    if twice:
        return "an operator is compiled twice", f"{twice} draw, write or do more, and are compiled more often", None
    return None


def _counted(nodes: Iterable[NodeInfo]) -> Counter[str]:
    # By operator alone: partitions that are shared bear the region of the first.
    return Counter(node.operator for node in nodes if node.operator)


def _as_few_as_possible(example: ExampleRun, graph: WatchedGraph) -> Broken:
    if not graph.shows or graph.nested:
        return None
    keys = {region: _key_of(example, region) for region in graph.regions}
    least = {key: least_partitions(graph.nodes, keys, key, as_it_likes=True) for key in set(keys.values())}
    if len(graph.calls) < sum(least.values()):
        return (
            "fewer partitions than can be",
            f"{len(graph.calls)} compiled calls, though {sum(least.values())} are the least for {least}",
            None,
        )
    enough = sum(least_partitions(graph.nodes, keys, key) for key in least)
    exact = len(least) == 1 and not any(node.effect for node in graph.nodes)
    if exact and len(graph.calls) > enough:
        return (
            "more partitions than needed",
            f"{len(graph.calls)} compiled calls of one region, though {enough} are enough",
            graph.regions[0][0],
        )
    return None


def least_partitions(
    nodes: Iterable[NodeInfo], keys: Mapping[RegionId, RegionId], key: RegionId, *, as_it_likes: bool = False
) -> int:
    """Return how many partitions the nodes of one key need: how often a path leaves the region and comes back.

    Nodes without an operator (elements of results, say) stand where the node stands that they belong to. So do those
    that a backend may compile or not, if it does ``as_it_likes`` and that saves a way out of the region and back; else
    they are in the region they are marked with.
    """
    inside: dict[str, bool] = {}
    behind: dict[str, int] = {}
    most = 0
    for node in nodes:
        belongs = keys.get(node.region) == key if node.region else False
        free = as_it_likes and (node.view or node.sums_gradients)
        if free or (not node.operator and node.inputs):
            belongs = any(inside.get(name, False) for name in node.inputs)
        if free and belongs:  # outside is as good where a path through another input left the region once more
            stays = max(behind.get(name, 0) for name in node.inputs)
            belongs = any(inside.get(name, False) and behind.get(name, 0) == stays for name in node.inputs)
        left = (behind.get(name, 0) + (inside.get(name, False) and not belongs) for name in node.inputs)
        behind[node.name], inside[node.name] = max(left, default=0), belongs
        if belongs and node.operator and not free:
            most = max(most, behind[node.name] + 1)
    return most


def _equal_partitions_once(example: ExampleRun, graphs: Iterable[WatchedGraph]) -> None:
    if not example.regional.supports("share_identical"):
        return
    seen: dict[str, WatchedPartition] = {}
    for graph in graphs:
        for partition in graph.partitions:
            if partition.shape is None:
                continue
            if partition.shape in seen:
                raise example.violation(
                    "plan",
                    "backward" if graph.kind == "backward" else "compile",
                    f"equal partitions were compiled twice: {list(partition.operators)}",
                    origin="equal partitions are compiled twice",
                )
            seen[partition.shape] = partition


#: Positions of the ends, and whether no value flows from the first to the second.
Edge = tuple[int, int, bool]
Place = tuple[int, ...]

#: They may copy, and then only because the layout asks for it.
_RESHAPES = frozenset({"view", "reshape", "_unsafe_view", "_reshape_alias"})

_NUMBER = "fuzzed_order"
_EDGES = 4


def check_region_order(example: ExampleRun) -> None:
    """Raise where a region runs before another one that its annotation wants to be first."""
    asked = {(str(first), str(region.name)) for region in example.program.regions for first in region.after}
    graphs = []
    for graph in example.cold.watched.graphs:
        if graph.kind != "backward":
            # Regions that hold more than views, which run nothing and so have no place in time.
            run = {node.region[0] for node in graph.nodes if node.region and node.operator and not node.view}
            graphs.append((graph, {pair for pair in asked if run.issuperset(pair)}))
    if not any(wanted for _, wanted in graphs):
        raise NoClaim("no annotation asks for an order of regions that run anything")
    for graph, wanted in graphs:
        running = [
            name if _runs(example, artifact) else None for name, artifact in zip(graph.called, graph.calls, strict=True)
        ]
        for first, then in wanted:
            places = {name: [at for at, call in enumerate(running) if call == name] for name in (first, then)}
            if places[first] and places[then] and max(places[first]) > min(places[then]):
                raise example.violation(
                    "region_order",
                    "compile",
                    f"region {then!r} is to run after {first!r}, but the {graph.kind} graph calls {graph.called}",
                    origin="a region runs too early",
                    region=then,
                )


def _runs(example: ExampleRun, artifact: int) -> bool:
    """Return whether a compiled call does more than views: of a region one partition may hold nothing else."""
    partition = example.cold.watched.artifacts.get(artifact)
    return partition is None or any(node.operator and not node.view for node in partition.nodes)


def check_order(example: ExampleRun) -> None:
    """Raise where an order edge is not visible in what the backend made of the graph."""
    if any(region.after for region in example.program.regions):
        raise NoClaim("annotations ask for an order already, which random edges may contradict")
    spy = OrderListener(random.Random(example.program.source), interpreted=example.mode in INTERPRETED)
    example.start_over()
    example.regional.observer.listeners.insert(0, spy)
    try:
        run = example.run(example.program, calls=1)
    finally:
        example.regional.observer.listeners.remove(spy)
    raise_failure(example, run, "order")
    if spy.violated:
        raise example.violation("order", "compile", spy.violated[0], origin="an edge is not visible")
    before = {mismatch.where for mismatch in mismatches_of(example, example.cold)}
    changed = [mismatch for mismatch in mismatches_of(example, run) if mismatch.where not in before]
    if changed:
        raise example.violation("order", "run", f"with order edges: {changed[0]}", origin="edges change values")
    if not spy.visible:
        raise NoClaim("no two operators could be ordered visibly")


class OrderListener(CompileListener):
    """Adds order edges to graphs, and looks for them in what they are compiled to.

    Attributes:
        violated: what is wrong, in sentences.
        visible: how many edges were seen to hold.
    """

    def __init__(self, draw: random.Random, *, interpreted: bool) -> None:
        self.violated: list[str] = []
        self.visible = 0
        self._draw = draw
        self._interpreted = interpreted
        self._inside: dict[int, dict[int, Place]] = {}
        self._kept: list[Any] = []
        self._launches: list[RawLaunch] = []

    @contextlib.contextmanager
    def compiling_graph(self, kind: str, gm: Any) -> Iterator[Callable[[Any], None]]:
        """Add edges to ``gm``."""
        edges, names = self._add_edges(gm)
        yield lambda result: self._look(kind, fx_graphs.graph_module_in(result), edges, names)

    @contextlib.contextmanager
    def compiling_region(self, gm: Any, inputs: Sequence[Any]) -> Iterator[Callable[[Any], None]]:
        """Note where the operators of a partition are in its code."""
        numbers = {number for node in gm.graph.nodes for number in _numbers_of(node)}
        around, self._launches = self._launches, []
        try:
            launches = self._launches
            yield lambda artifact: self._note(artifact, numbers, launches)
        finally:
            self._launches = around

    def code_generated(self, launches: Sequence[RawLaunch]) -> None:
        """Keep what the code of the partition launches."""
        self._launches += launches

    def _note(self, artifact: Any, numbers: set[int], launches: Sequence[RawLaunch]) -> None:
        self._kept.append(artifact)  # an identity is one only while the object lives
        places: dict[int, Place] = {}
        for position, launch in enumerate(launches):
            for loop, number in sorted(_launched(launch)):
                places.setdefault(number, (position, loop))
        self._inside[id(artifact)] = dict.fromkeys(numbers, ()) if self._interpreted else places

    def _add_edges(self, gm: Any) -> tuple[list[Edge], dict[int, str]]:
        without_end = _equal_nodes(gm.graph) | _made_of_constants(gm.graph)
        nodes = [node for node in gm.graph.nodes if _can_be_ordered(node) and node not in without_end]
        edges = list(legal_edges(self._draw, list(gm.graph.nodes), nodes, _EDGES))
        for number, node in enumerate(nodes):
            node.meta["custom"] = {**node.meta.get("custom", {}), _NUMBER: number}
        names = {number: node.name for number, node in enumerate(nodes)}
        asked: dict[Any, list[Any]] = {}
        for before, after, _ in edges:
            asked.setdefault(nodes[after], []).append(nodes[before])
        if asked:
            add_control_deps(gm.graph, asked)
            gm.recompile()
        return edges, names

    def _look(self, kind: str, gm: Any, edges: Sequence[Edge], names: dict[int, str]) -> None:
        if not isinstance(gm, GraphModule):
            return
        places: dict[int, Place] = {}
        for step, node in enumerate(node for graph in graphs_of(gm) for node in graph.nodes):
            artifact = inductor.artifact_behind(node.target)
            found = dict.fromkeys(_numbers_of(node), ()) if artifact is None else self._inside.get(id(artifact), {})
            for number, place in found.items():
                places.setdefault(number, (step, *place))
        for before, after, is_free in edges:
            if before not in places or after not in places:
                continue  # merged into another operator
            self.visible += places[before] < places[after]
            if places[before] > places[after]:
                message = f"{kind} graph: {names[after]} runs before {names[before]}, which was to be first"
                self.violated.append(message)
            if places[before] == places[after] and is_free and not self._interpreted:
                message = f"{kind} graph: {names[after]} runs in one loop with {names[before]}, which was to be first"
                self.violated.append(message)


def _numbers_of(node: Any) -> tuple[int, ...]:
    custom = node.meta.get("custom") or {}
    runs = node.op == "call_function" and node.target is not operator.getitem  # has the metadata of what it picks
    return (custom[_NUMBER],) if _NUMBER in custom and runs else ()


def _launched(launch: RawLaunch) -> set[tuple[int, int]]:
    """Return loop and number of each operator that a launch computes."""
    if launch.is_extern:
        return {(0, number) for number in (_numbers_of(launch.node) if launch.node is not None else ())}
    made = zip(launch.loops, launch.buffers, strict=True)
    return {(loop, number) for loop, (_, nodes) in made for node in nodes for number in _numbers_of(node)}


def _can_be_ordered(node: Any) -> bool:
    """Tell operators that make one new tensor and do nothing else."""
    if node.op != "call_function" or not is_op_overload(node.target) or not node.all_input_nodes:
        return False
    schema, value = schema_of(node.target), node.meta.get("val")
    plain = not schema.is_mutable and all(result.alias_info is None for result in schema.returns)
    draws = torch.Tag.nondeterministic_seeded in node.target.tags
    runs = plain and not draws and _name(node) not in _RESHAPES
    return runs and isinstance(value, torch.Tensor) and annotated.region_of(node) is not None


def _equal_nodes(graph: Any) -> set[Any]:
    """Return the nodes that compute what another one computes: compilers merge them, and then an edge has no end."""
    numbers: dict[Any, Any] = {}
    groups: dict[Any, list[Any]] = {}
    for node in graph.nodes:
        if node.op == "call_function":
            name = "view" if _name(node) in _RESHAPES else str(node.target)
            key = (name, str(map_arg((node.args, node.kwargs), numbers.__getitem__)))
            numbers[node] = f"={len(numbers)}" if key not in groups else numbers[groups[key][0]]
            groups.setdefault(key, []).append(node)
        else:
            numbers[node] = f"={len(numbers)}"
    return {node for group in groups.values() if len(group) > 1 for node in group}


def _made_of_constants(graph: Any) -> set[Any]:
    """Return the nodes that no tensor flows into: Inductor computes them again wherever they are read."""
    made: set[Any] = set()
    for node in graph.nodes:
        is_tensor = node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor)
        if not is_tensor and node.op != "get_attr" and made.issuperset(node.all_input_nodes):
            made.add(node)
    return made


def _name(node: Any) -> str:
    return op_name(node.target) if is_op_overload(node.target) else ""


def legal_edges(draw: random.Random, graph: Sequence[Any], nodes: Sequence[Any], count: int) -> Iterator[Edge]:
    """Yield edges along an order that the flow of values allows: together without a cycle.

    Half of them, where there are so many, join operators of one region between which no value flows.
    """
    positions = {node: position for position, node in enumerate(nodes)}
    waiting = {node: len(node.all_input_nodes) for node in graph}
    needed: dict[Any, set[Any]] = {}  # for each node all nodes that a value flows from
    for node in graph:
        needed[node] = {*node.all_input_nodes}.union(*(needed[operand] for operand in node.all_input_nodes))
    ready = [node for node in graph if not waiting[node]]
    order: list[int] = []
    while ready:
        node = ready.pop(draw.randrange(len(ready)))
        if node in positions:
            order.append(positions[node])
        for user in node.users:
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    pairs = [
        (a, b, nodes[a] not in needed[nodes[b]])
        for place, a in enumerate(order)
        for b in order[place + 1 :]
        if nodes[b] not in nodes[a].users
    ]
    inside = [
        (a, b, is_free)
        for a, b, is_free in pairs
        if is_free and annotated.region_of(nodes[a]) == annotated.region_of(nodes[b])
    ]
    chosen = draw.sample(inside, min(count // 2, len(inside)))
    others = [pair for pair in pairs if pair not in chosen]
    yield from [*chosen, *draw.sample(others, min(count - len(chosen), len(others)))]


ORACLES = (
    Oracle(
        "plan",
        "Partitions hold one region each, and are as few as can be; all that is annotated is compiled, nothing else.",
        check_plan,
        modes=MODES,
        requires=("regions",),
        place=50,
    ),
    Oracle(
        "region_order",
        "A region runs after the regions that its annotation names.",
        check_region_order,
        modes=MODES,
        requires=("regions", "region_order"),
        place=190,
    ),
    Oracle(
        "order",
        "An order edge between two operators is visible in what the backend makes of the graph, and changes no value.",
        check_order,
        modes=MODES,
        requires=("regions", "region_order"),
        every=4,
        place=200,
    ),
)
