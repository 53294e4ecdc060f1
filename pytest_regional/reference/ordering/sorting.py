"""Bring a graph into an order that keeps values, effects and requested edges, or name the cycle.

Kahn's algorithm (A. B. Kahn, "Topological sorting of large networks", 1962) with a heap over program positions: a
graph that satisfies all edges already stays as it is, and what must move moves no further than it must.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import torch.fx

from pytest_regional.reference.effects import Edge, order_edges
from pytest_regional.reference.ordering.errors import OrderingCycleError

_FLOW = "value"
_EFFECT = "effect"
_REQUESTED = "requested"


def sort_by(graph: torch.fx.Graph, requested: Sequence[Edge]) -> tuple[torch.fx.Node, ...]:
    """Move nodes so that every ``(before, after)`` pair holds; return those that follow others than they did.

    Raises:
        OrderingCycleError: when the pairs contradict each other, data flow or effects; ``graph`` is unchanged then.
    """
    position = {node: i for i, node in enumerate(graph.nodes)}
    if all(position[a] < position[b] for a, b in requested):
        return ()
    before = _reasons(graph, requested)
    order = _topological(position, before)
    if len(order) < len(position):
        raise _cycle_error(before, set(position).difference(order), position)
    return _rearrange(graph, order)


def _reasons(graph: torch.fx.Graph, requested: Iterable[Edge]) -> dict[torch.fx.Node, dict[torch.fx.Node, str]]:
    """Return, for each node, what it must follow and why."""
    before: dict[torch.fx.Node, dict[torch.fx.Node, str]] = defaultdict(dict)
    for node in graph.nodes:
        for source in node.all_input_nodes:
            before[node][source] = _FLOW
    for a, b in order_edges(graph):
        before[b].setdefault(a, _EFFECT)
    for a, b in requested:
        before[b].setdefault(a, _REQUESTED)
    return before


def _topological(
    position: Mapping[torch.fx.Node, int], before: Mapping[torch.fx.Node, Mapping[torch.fx.Node, str]]
) -> list[torch.fx.Node]:
    after: dict[torch.fx.Node, list[torch.fx.Node]] = defaultdict(list)
    blocked = dict.fromkeys(position, 0)
    for node, sources in before.items():
        blocked[node] = len(sources)
        for source in sources:
            after[source].append(node)
    ready = [(i, node) for node, i in position.items() if not blocked[node]]
    heapq.heapify(ready)
    order = []
    while ready:
        _, node = heapq.heappop(ready)
        order.append(node)
        for follower in after[node]:
            blocked[follower] -= 1
            if not blocked[follower]:
                heapq.heappush(ready, (position[follower], follower))
    return order


def _rearrange(graph: torch.fx.Graph, order: Sequence[torch.fx.Node]) -> tuple[torch.fx.Node, ...]:
    moved = []
    for previous, node in itertools.pairwise(order):
        if previous.next is not node:
            previous.append(node)
            moved.append(node)
    return tuple(moved)


def _cycle_error(
    before: Mapping[torch.fx.Node, Mapping[torch.fx.Node, str]],
    stuck: set[torch.fx.Node],
    position: Mapping[torch.fx.Node, int],
) -> OrderingCycleError:
    """Walk backwards among the nodes that could not be placed until one comes again."""
    node = min(stuck, key=position.__getitem__)
    path: dict[torch.fx.Node, int] = {}
    trail: list[torch.fx.Node] = []
    while node not in path:
        path[node] = len(trail)
        trail.append(node)
        node = next(source for source in before[node] if source in stuck)
    cycle = [*trail[path[node] :], node][::-1]
    steps = [f"{a.name} before {b.name} ({before[b][a]})" for a, b in itertools.pairwise(cycle)]
    names = [node.name for node in cycle]
    return OrderingCycleError(
        f"the requested order has a cycle: {' -> '.join(names)}. It consists of: {'; '.join(steps)}. "
        f"Leave one of the requested edges out.",
        names,
    )
