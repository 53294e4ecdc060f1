"""Joint partitioning: all region keys at once, acyclic, linear in nodes plus edges.

``gradients`` assigns sums of gradients to regions, nodes become numbers, elements of a tuple are merged with the op
that makes it, and ``schedule`` orders them. Its steps become nodes and partitions again, except for partitions of
views.
"""

from __future__ import annotations

import contextlib
import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch.fx

from pytest_regional._base.errors import RegionalRuntimeError
from pytest_regional._torch.fx_graphs import is_backward_node
from pytest_regional.reference.effects import Barrier, Edge, computes, element_of, order_edges
from pytest_regional.reference.gradients import with_sums_of_gradients
from pytest_regional.reference.regions import RegionKey, read_region_keys
from pytest_regional.reference.schedule import Dag, schedule


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Disable the garbage collector temporarily; also a decorator.

    For work that allocates much and frees little: full collections would traverse all of torch's objects and take half
    of the time at 10,000 nodes. Threads that use this at once find the collector enabled afterwards.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass(frozen=True)
class Partition:
    """Nodes of one region key that are compiled together, in program order."""

    key: RegionKey
    nodes: tuple[torch.fx.Node, ...]


@dataclass(frozen=True)
class PartitionPlan:
    """An execution order with one step per partition; placeholders, attributes and output are separate."""

    steps: tuple[torch.fx.Node | Partition, ...]
    least_partitions: int = 0

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """The partitions, in execution order."""
        return tuple(step for step in self.steps if isinstance(step, Partition))


@without_collections()
def plan_partitions(
    graph: torch.fx.Graph,
    keys: Mapping[torch.fx.Node, RegionKey] | None = None,
    extra_edges: Iterable[Edge] = (),
    barriers: Sequence[Barrier] = (),
) -> PartitionPlan:
    """Plan the partitions of ``graph``.

    Args:
        graph: An FX graph in program order.
        keys: Region key of each node to compile; by default from annotations and sums of gradients.
        extra_edges: ``(before, after)`` pairs to keep, besides data flow and effects; both must be in this order.
        barriers: Groups of nodes to keep apart; the first node after a barrier comes after all nodes before it.

    Raises:
        ValueError: If an edge contradicts program order.
        RegionalRuntimeError: If some node is not in exactly one step, a defect of this package.
    """
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    order = [*order_edges(graph), *extra_edges]
    if keys is None:
        keys = with_sums_of_gradients(graph, read_region_keys(graph), {node for edge in order for node in edge})
    homes = _homes(nodes, keys)
    groups = _Groups.of(nodes, barriers)
    made = schedule(Dag.from_edges(groups.keys(homes), groups.edges(order, barriers)))
    steps = tuple(_with_views_eager(tuple(_steps(groups.members, made.steps, homes))))
    plan = PartitionPlan(steps, min(made.least_runs, sum(isinstance(step, Partition) for step in steps)))
    _check_complete(plan, nodes)
    return plan


def _homes(
    nodes: Sequence[torch.fx.Node], keys: Mapping[torch.fx.Node, RegionKey]
) -> dict[torch.fx.Node, RegionKey | None]:
    """Return every node's key: tuple elements have their op's key, dead nodes none."""
    homes: dict[torch.fx.Node, RegionKey | None] = {}
    dead = _dead_nodes(nodes)
    for node in nodes:
        producer = element_of(node)
        if producer is not None and producer in homes:
            homes[node] = homes[producer]
        else:
            homes[node] = None if node in dead or producer is not None else keys.get(node)
    return homes


def _dead_nodes(nodes: Sequence[torch.fx.Node]) -> set[torch.fx.Node]:
    dead: set[torch.fx.Node] = set()
    for node in reversed(nodes):
        if all(user in dead for user in node.users) and not node.is_impure():
            dead.add(node)
    return dead


@dataclass(frozen=True)
class _Groups:
    """The scheduled groups, numbered in program order: an op with its result's elements, or an empty barrier."""

    members: list[list[torch.fx.Node]]
    number: dict[torch.fx.Node | Barrier, int]

    @classmethod
    def of(cls, nodes: Sequence[torch.fx.Node], barriers: Sequence[Barrier]) -> _Groups:
        groups = cls([], {})
        in_front: dict[torch.fx.Node, list[Barrier]] = defaultdict(list)
        for barrier in barriers:
            for node in barrier.after:
                in_front[node].append(barrier)
        for node in nodes:
            producer = element_of(node)
            if producer is not None and producer in groups.number:
                groups.number[node] = groups.number[producer]
                groups.members[groups.number[node]].append(node)
                continue
            for barrier in in_front.get(node, ()):
                if barrier not in groups.number:
                    groups._add(barrier, [])
            groups._add(node, [node])
        return groups

    def _add(self, item: torch.fx.Node | Barrier, members: list[torch.fx.Node]) -> None:
        self.number[item] = len(self.members)
        self.members.append(members)

    def keys(self, homes: Mapping[torch.fx.Node, RegionKey | None]) -> list[int | None]:
        """Return the key of each group as a number."""
        numbers: dict[RegionKey | None, int | None] = {None: None}
        found = (homes[group[0]] if group else None for group in self.members)
        return [numbers.setdefault(key, len(numbers)) for key in found]

    def edges(self, extra: Iterable[Edge], barriers: Sequence[Barrier]) -> Iterable[tuple[int, int]]:
        """Return each pair of groups once: data flow, ``extra`` and barriers."""
        number = self.number
        flow = (
            (number[source], i)
            for i, group in enumerate(self.members)
            for node in group
            for source in node.all_input_nodes
            if source in number
        )
        held = [(a, barrier) for barrier in barriers for a in barrier.before]
        freed = [(barrier, b) for barrier in barriers for b in barrier.after]
        every: Iterable[tuple[torch.fx.Node | Barrier, torch.fx.Node | Barrier]] = (*extra, *held, *freed)
        ordered = ((number[a], number[b]) for a, b in every if a in number and b in number)
        unique = dict.fromkeys((a, b) for a, b in (*flow, *ordered) if a != b)
        for a, b in unique:
            if a > b:
                raise ValueError(f"order edge contradicts program order: {self._first(a)} before {self._first(b)}")
        return unique

    def _first(self, number: int) -> str:
        return next(map(str, self.members[number]), "a barrier")


def _steps(
    members: Sequence[Sequence[torch.fx.Node]],
    steps: Iterable[Iterable[int]],
    homes: Mapping[torch.fx.Node, RegionKey | None],
) -> Iterator[torch.fx.Node | Partition]:
    for step in steps:
        nodes = tuple(node for i in step for node in members[i])
        key = homes[nodes[0]] if nodes else None
        if key is None:
            yield from nodes
        else:
            yield Partition(key, nodes)


def _with_views_eager(steps: Sequence[torch.fx.Node | Partition]) -> Iterator[torch.fx.Node | Partition]:
    """Split partitions that compute nothing: running views as ops costs less than a compile and a call.

    A region with only views in a graph is still compiled, as annotated. But not among gradients, whose views the user
    did not write.
    """
    computing = {step for step in steps if isinstance(step, Partition) and any(map(computes, step.nodes))}
    regions = {partition.key for partition in computing}
    for step in steps:
        if not isinstance(step, Partition) or step in computing:
            yield step
        elif step.key in regions or all(map(is_backward_node, step.nodes)):
            yield from step.nodes
        else:
            yield step


def _check_complete(plan: PartitionPlan, nodes: Sequence[torch.fx.Node]) -> None:
    """Raise if a node is missing or duplicated: a cycle of partitions would drop nodes, and their writes."""
    planned = [node for step in plan.steps for node in (step.nodes if isinstance(step, Partition) else (step,))]
    if len(planned) == len(nodes) and set(planned) == set(nodes):
        return
    lost = [node.name for node in nodes if node not in set(planned)]
    twice = [node.name for node in nodes if planned.count(node) > 1]
    raise RegionalRuntimeError(
        "internal error of pytest-regional: the plan of the partitions "
        + " and ".join(f"{what} {', '.join(names)}" for what, names in (("lost", lost), ("has twice", twice)) if names)
        + "; please report it with the graph (TORCH_LOGS=aot_graphs prints it)"
    )
