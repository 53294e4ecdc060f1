"""Sort a graph so that it keeps values, effects and requested edges, or report the cycle.

Kahn's algorithm (A. B. Kahn, "Topological sorting of large networks", 1962) with a heap over program positions: a graph
that satisfies all edges stays unchanged, and nodes move no further than needed.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import torch.fx

from pytest_regional.reference.effects import Barrier, Edge, order_edges
from pytest_regional.reference.ordering.operator import OrderingCycleError

_FLOW = "value"
_EFFECT = "effect"
_REQUESTED = "requested"

_Unit: TypeAlias = "torch.fx.Node | Barrier"
_Reasons: TypeAlias = "Mapping[_Unit, Mapping[_Unit, str]]"


def sort_by(
    graph: torch.fx.Graph, requested: Sequence[Edge], barriers: Sequence[Barrier] = ()
) -> tuple[torch.fx.Node, ...]:
    """Move nodes so that every ``(before, after)`` pair holds; return those whose predecessors changed.

    Raises:
        OrderingCycleError: the pairs contradict each other, data flow or effects; ``graph`` is unchanged then.
    """
    position: dict[_Unit, float] = {node: i for i, node in enumerate(graph.nodes)}
    if _holds(position, requested, barriers):
        return ()
    for i, barrier in enumerate(barriers, 1):
        first = min(position[node] for node in barrier.after)
        position[barrier] = first - i / (len(barriers) + 1)
    before = _reasons(graph, requested, barriers)
    order = _topological(position, before)
    if len(order) < len(position):
        raise _cycle_error(before, set(position).difference(order), position)
    return _rearrange([unit for unit in order if isinstance(unit, torch.fx.Node)])


def _holds(position: Mapping[_Unit, float], requested: Iterable[Edge], barriers: Iterable[Barrier]) -> bool:
    def places(nodes: Iterable[torch.fx.Node]) -> Iterable[float]:
        return map(position.__getitem__, nodes)

    return all(position[a] < position[b] for a, b in requested) and all(
        max(places(barrier.before)) < min(places(barrier.after)) for barrier in barriers
    )


def _reasons(graph: torch.fx.Graph, requested: Iterable[Edge], barriers: Iterable[Barrier]) -> _Reasons:
    """Return, for each node, its required predecessors and why."""
    before: dict[_Unit, dict[_Unit, str]] = defaultdict(dict)
    for node in graph.nodes:
        for source in node.all_input_nodes:
            before[node][source] = _FLOW
    for a, b in order_edges(graph):
        before[b].setdefault(a, _EFFECT)
    for a, b in requested:
        before[b].setdefault(a, _REQUESTED)
    for barrier in barriers:
        before[barrier] = dict.fromkeys(barrier.before, _REQUESTED)
        for node in barrier.after:
            before[node].setdefault(barrier, _REQUESTED)
    return before


def _topological(position: Mapping[_Unit, float], before: _Reasons) -> list[_Unit]:
    after: dict[_Unit, list[_Unit]] = defaultdict(list)
    blocked = dict.fromkeys(position, 0)
    for unit, sources in before.items():
        blocked[unit] = len(sources)
        for source in sources:
            after[source].append(unit)
    ready = [(place, unit) for unit, place in position.items() if not blocked[unit]]
    heapq.heapify(ready)
    order = []
    while ready:
        _, unit = heapq.heappop(ready)
        order.append(unit)
        for follower in after[unit]:
            blocked[follower] -= 1
            if not blocked[follower]:
                heapq.heappush(ready, (position[follower], follower))
    return order


def _rearrange(order: Sequence[torch.fx.Node]) -> tuple[torch.fx.Node, ...]:
    moved = []
    for previous, node in itertools.pairwise(order):
        if previous.next is not node:
            previous.append(node)
            moved.append(node)
    return tuple(moved)


def _cycle_error(before: _Reasons, stuck: set[_Unit], position: Mapping[_Unit, float]) -> OrderingCycleError:
    """Walk backwards among the remaining nodes until one repeats."""
    unit = min(stuck, key=position.__getitem__)
    path: dict[_Unit, int] = {}
    trail: list[_Unit] = []
    while unit not in path:
        path[unit] = len(trail)
        trail.append(unit)
        unit = next(source for source in before[unit] if source in stuck)
    cycle = [*trail[path[unit] :], unit][::-1]
    steps = [f"{a.name} before {b.name} ({before[b][a]})" for a, b in itertools.pairwise(cycle)]
    names = [unit.name for unit in cycle]
    return OrderingCycleError(
        f"the requested order has a cycle: {' -> '.join(names)}. It consists of: {'; '.join(steps)}. "
        f"Leave one of the requested edges out.",
        names,
    )
