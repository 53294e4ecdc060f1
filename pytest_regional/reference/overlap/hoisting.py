"""Starts as early as their inputs allow, and what prepares the inputs along with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch.fx

from pytest_regional.reference.overlap.claims import Claims
from pytest_regional.reference.overlap.collectives import Collective
from pytest_regional.reference.overlap.program import Program
from pytest_regional.reference.overlap.sinking import Moves


class _Place(NamedTuple):
    """Where a node stands: before what stood at ``slot`` if it has moved there, at ``slot`` otherwise."""

    slot: int
    stays: bool
    owner: int
    original: int


def hoist_starts(program: Program, order: Sequence[torch.fx.Node], claims: Claims, *, groups_apart: bool) -> Moves:
    """Move each start to right after its inputs, or as far as the bounds allow, the first start first.

    Args:
        program: what must precede what.
        order: the program order to begin from.
        claims: the bounds, of ``order``.
        groups_apart: let collectives pass those of other process groups.
    """
    return _Hoisting(program, order, claims, groups_apart).run()


class _Hoisting:
    def __init__(self, program: Program, order: Sequence[torch.fx.Node], claims: Claims, groups_apart: bool) -> None:
        self._program, self._order, self._claims = program, order, claims
        self._groups_apart = groups_apart
        self._places = {node: _Place(i, True, i, i) for i, node in enumerate(order)}
        self._floor = next((i for i, node in enumerate(order) if node.op != "placeholder"), 0)
        self._earliest: dict[torch.fx.Node, int] = {}
        self._last_start: dict[str, int] = {}
        self._stops: dict[torch.fx.Node, tuple[str, int]] = {}

    def run(self) -> Moves:
        barrier = self._floor
        for place, node in enumerate(self._order):
            if node in self._program.starts:
                self._hoist(self._program.starts[node], max(barrier, self._after_inputs(node)))
            elif node in self._program.barriers:
                barrier = place + 1
            elif self._program.is_preparation(node):
                self._earliest[node] = self._after_inputs(node)
        moved = {node for node, place in self._places.items() if not place.stays}
        stops = {start: (bound, self._stayed_before(slot)) for start, (bound, slot) in self._stops.items()}
        return Moves(sorted(self._order, key=self._places.__getitem__), moved, stops)

    def _stayed_before(self, slot: int) -> torch.fx.Node:
        """Return the node that the start at ``slot`` is held back by: the last one before that has not moved itself."""
        before = (self._order[i] for i in range(slot - 1, -1, -1))
        return next((node for node in before if self._places[node].stays), self._order[0])

    def _after_inputs(self, node: torch.fx.Node) -> int:
        """Return the first slot at which all that ``node`` must follow has run, or can have run."""
        return max([self._floor, *map(self._after, self._program.before[node])])

    def _after(self, node: torch.fx.Node) -> int:
        if node in self._earliest:
            return self._earliest[node]
        place = self._places[node]
        return place.slot + 1 if place.stays else place.slot

    def _hoist(self, collective: Collective, lowest: int) -> None:
        start = collective.start
        queue = collective.group if self._groups_apart else ""
        lowest = min(max(lowest, self._last_start.get(queue, 0)), self._places[start].slot)
        slot, bound = self._claims.earliest(collective, lowest)
        if bound is not None:
            self._stops[start] = (bound, slot)
        self._claims.start_at(collective, slot)
        self._move(start, slot)
        for element in collective.elements:
            self._places[element] = _Place(slot, False, self._places[start].owner, self._places[element].original)
        self._last_start[queue] = self._after(start)

    def _move(self, start: torch.fx.Node, slot: int) -> None:
        """Place ``start`` before what stands at ``slot``, and what prepares its inputs before it."""
        waiting = [start]
        while waiting:
            node = waiting.pop()
            place = self._places[node]
            if place.slot > slot or (place.stays and place.slot == slot) or node is start:
                self._places[node] = _Place(slot, False, place.original, place.original)
                waiting += (source for source in self._program.before[node] if source in self._earliest)
