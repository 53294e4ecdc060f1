"""Which requested edges hold anyway: those that leave nothing to enforce.

An edge is implied where values flow from its first node to its second, or where other edges lead there through nodes
that are computed at all. This is the transitive reduction of the requested edges over the graph (A. V. Aho,
M. R. Garey and J. D. Ullman, "The transitive reduction of a directed graph", 1972), by sets of ancestors that hold
only nodes that somebody waits for, one bit each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch.fx

from pytest_regional.reference.effects import RANDOM, effect_classes, written_arguments
from pytest_regional.reference.ordering.operator import dependencies_of, operands_of


class Ancestors:
    """What runs before each node of ``graph``, restricted to the nodes in ``waited_for``."""

    def __init__(self, graph: torch.fx.Graph, waited_for: Iterable[torch.fx.Node]) -> None:
        self._bits = {node: 1 << i for i, node in enumerate(dict.fromkeys(waited_for))}
        self._alive = _computed(graph)
        self._known: dict[torch.fx.Node, int] = {}

    def needed(
        self, node: torch.fx.Node, requested: Sequence[torch.fx.Node], position: Mapping[torch.fx.Node, int]
    ) -> list[torch.fx.Node]:
        """Note that ``node`` comes next, and return those of ``requested`` that nothing else puts before it."""
        known = 0
        for source in operands_of(node):
            known |= self._through(source)
        for source in dependencies_of(node):
            known |= self._by_order(source)
        needed = []
        for dependency in sorted(requested, key=position.__getitem__, reverse=True):
            if not self._bits[dependency] & known:
                needed.append(dependency)
                known |= self._by_order(dependency)
        self._known[node] = known
        return needed[::-1]

    def _through(self, node: torch.fx.Node) -> int:
        return self._known.get(node, 0) | self._bits.get(node, 0)

    def _by_order(self, node: torch.fx.Node) -> int:
        """Return what waiting for ``node`` gives: one that nobody needs may vanish, and what it waited for with it."""
        return self._through(node) if node in self._alive else self._bits.get(node, 0)


def _computed(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Return the nodes that an output or an effect needs by value."""
    alive: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in alive or written_arguments(node) or effect_classes(node) - {RANDOM}:
            alive.add(node)
            alive.update(operands_of(node))
    return alive
