"""``explain``: the region plan of a graph, for people."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch.fx

from pytest_regional.reference.compile_regions import request_for
from pytest_regional.reference.effects import order_edges
from pytest_regional.reference.extract import extract_partitions
from pytest_regional.reference.fingerprint import fingerprint
from pytest_regional.reference.partition import Partition, plan_partitions


@dataclass(frozen=True)
class ExplainedPartition:
    """One partition: its ops, what kept it apart from the one before, and which earlier one it is identical to."""

    name: str
    region: str
    configs: Mapping[str, Any]
    ops: tuple[str, ...]
    split_by: str | None = None
    shared_with: str | None = None

    def __str__(self) -> str:
        notes = [f"split by {self.split_by}"] if self.split_by else []
        notes += [f"shares {self.shared_with}"] if self.shared_with else []
        return f"  {self.name}: {', '.join(self.ops)}" + (f"  ({'; '.join(notes)})" if notes else "")


@dataclass(frozen=True)
class Explanation:
    """The region plan of one graph."""

    partitions: tuple[ExplainedPartition, ...]

    @property
    def regions(self) -> tuple[str, ...]:
        """Labels of the regions, in order of appearance."""
        return tuple(dict.fromkeys(partition.region for partition in self.partitions))

    def __str__(self) -> str:
        lines = []
        for region in self.regions:
            mine = [partition for partition in self.partitions if partition.region == region]
            lines += [f"region {region!r}: {len(mine)} partition(s)", *map(str, mine)]
        return "\n".join(lines) or "no regions"


def explain(gm: torch.fx.GraphModule, *, show: bool = True) -> Explanation:
    """Return, and print unless ``show`` is false, how ``gm`` would be cut into regions; ``gm`` stays as it is."""
    plan = plan_partitions(gm.graph)
    splits = _splits(gm.graph, plan.partitions)
    duplicate = torch.fx.GraphModule(gm, copy.deepcopy(gm.graph))
    regions = extract_partitions(duplicate, plan_partitions(duplicate.graph))
    first: dict[Any, str] = {}
    explained = []
    for region, partition in zip(regions, plan.partitions, strict=True):
        original = first.setdefault(fingerprint(request_for(region)).token, region.name)
        explained.append(
            ExplainedPartition(
                region.name,
                partition.key.label,
                partition.key.settings,
                tuple(str(node.target) for node in partition.nodes),
                splits.get(partition),
                None if original == region.name else original,
            )
        )
    explanation = Explanation(tuple(explained))
    if show:
        print(explanation)
    return explanation


def _splits(graph: torch.fx.Graph, partitions: Iterable[Partition]) -> dict[Partition, str]:
    """Name the node on a path from each partition of a key to the next, or the lack of one."""
    before: dict[torch.fx.Node, list[torch.fx.Node]] = defaultdict(list)
    for node in graph.nodes:
        before[node] += node.all_input_nodes
    for a, b in order_edges(graph):
        before[b].append(a)
    last: dict[object, Partition] = {}
    splits = {}
    for partition in partitions:
        earlier = last.get(partition.key)
        if earlier is not None:
            between = _between(before, earlier, partition)
            splits[partition] = "the order of other regions" if between is None else between.name
        last[partition.key] = partition
    return splits


def _between(
    before: Mapping[torch.fx.Node, list[torch.fx.Node]], earlier: Partition, later: Partition
) -> torch.fx.Node | None:
    """Search backwards from ``later`` for a node outside both that depends on ``earlier``."""
    sources, members = set(earlier.nodes), set(later.nodes)
    stack = [node for member in later.nodes for node in before[member] if node not in members]
    seen = set(stack)
    while stack:
        node = stack.pop()
        if node not in sources and any(other in sources for other in before[node]):
            return node
        fresh = [other for other in before[node] if other not in seen]
        seen.update(fresh)
        stack += fresh
    return None
