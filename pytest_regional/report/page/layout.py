"""Where the nodes of a graph stand when it is drawn: in layers, from what is needed to what needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def positions(nodes: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Return column and row of each node, which has its neighbours' numbers in ``inputs`` and ``after``.

    A node stands one row below the lowest of those that it needs or waits for. In a row nodes are ordered by the mean
    column of those above them (the barycenter heuristic of Sugiyama, Tagawa and Toda, 1981), which keeps edges from
    crossing; rows are centred. What a node waits for stands above it where it comes before it in the graph; else the
    edge goes upwards, as regions that need each other may ask for an order that values contradict.
    """
    import networkx

    graph = networkx.DiGraph()
    graph.add_nodes_from(range(len(nodes)))
    graph.add_edges_from(
        (one, index) for index, node in enumerate(nodes) for one in (*node["inputs"], *node["after"]) if one < index
    )
    columns: dict[int, float] = {}
    rows: dict[int, int] = {}
    for row, layer in enumerate(networkx.topological_generations(graph)):
        ordered = sorted(layer, key=lambda node: (_mean([columns[one] for one in graph.predecessors(node)]), node))
        for place, node in enumerate(ordered):
            columns[node] = place - (len(ordered) - 1) / 2
            rows[node] = row
    return [(columns[index], float(rows[index])) for index in range(len(nodes))]


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0
