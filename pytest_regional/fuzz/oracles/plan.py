"""The oracle ``plan``: what is compiled as which region, seen from outside of the backend.

Of the rules for regions: partitions hold one region each (1), all regions together have no cycle (2, shown by the
program running at all), as few partitions as the flow of values allows (4), every annotated operator is compiled, in
bodies of operators and in the backward too, and nothing else is (5, 6, 7), and equal partitions once (9).

Two kinds of operators a backend may compile or leave eager as it likes: sums of gradients, which belong to no operator
of the program, and views, which compute nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from pytest_regional.fuzz.modes import MODES
from pytest_regional.fuzz.oracles.example_run import ExampleRun
from pytest_regional.fuzz.oracles.oracle import NoClaim, Oracle
from pytest_regional.fuzz.oracles.watching import NodeInfo, WatchedGraph, WatchedPartition
from pytest_regional.harness.observe.annotated import RegionId


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
    return _too_much(graph, extra, {node.operator for node in compiled if node.effect})


def _too_much(graph: WatchedGraph, extra: Counter[str], effects: Collection[str | None]) -> Broken:
    """Check operators that are compiled more often than the graph holds them.

    A backend may add what only computes to a region, as a pass of its own; it may not take it from outside.
    """
    taken = extra & (_counted(node for node in graph.nodes if not node.region) - Counter(graph.outside))
    if taken:
        return (
            "an operator outside of all regions is compiled",
            f"in no region of the graph, but compiled with one: {dict(taken)}",
            None,
        )
    twice = sorted(name for name in extra if name in effects)
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


ORACLES = (
    Oracle(
        "plan",
        "Partitions hold one region each, and are as few as can be; all that is annotated is compiled, nothing else.",
        check_plan,
        modes=MODES,
        requires=("regions",),
        place=50,
    ),
)
