"""Moves waits down to their first use, with the views of their results, and starts up to their inputs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch.fx

from pytest_regional.reference.effects import Edge
from pytest_regional.reference.overlap.collectives import Collective, reads
from pytest_regional.reference.overlap.program import OverlapProgram
from pytest_regional.reference.overlap.reservations import Reservations

Key = tuple[int, bool, int]


@dataclass
class Moves:
    """A new order of a program, and what stopped nodes from moving further.

    Attributes:
        order: the nodes in their new order.
        moved: nodes with a new position.
        stops: for each wait or start stopped by a bound, the bound and the node that it may not pass.
    """

    order: list[torch.fx.Node]
    moved: set[torch.fx.Node]
    stops: dict[torch.fx.Node, tuple[str, torch.fx.Node]] = field(default_factory=dict)


def sink_waits(program: OverlapProgram, claims: Reservations) -> Moves:
    """Move each wait right before its first use, or as far as the bounds allow; unused ones stay.

    The last wait moves first: if there is room for only some collectives, each gets some overlap, instead of the first
    one all of it.
    """
    order = program.order
    uses = _uses(program)
    slots: dict[torch.fx.Node, int] = {}
    stops = {}
    for node in reversed(order):
        is_wait = node in program.waits
        if not (is_wait or program.is_view_of_result(node)) or not any(reads(user, node) for user in node.users):
            continue
        slots[node] = min(slots.get(user, uses[user]) for user in program.after[node])
        if is_wait:
            slot, bound = claims.latest(program.waits[node], node, slots[node])
            if bound is not None:
                stops[node] = (bound, order[slot])
                slot = uses[order[slot]]
            slots[node] = slot
            claims.wait_at(program.waits[node], slot)
    keys = _rearranged(program, slots)
    moved = {node for node, key in keys.items() if not key[1]}
    return Moves(sorted(order, key=keys.__getitem__), moved, stops)


def _uses(program: OverlapProgram) -> dict[torch.fx.Node, int]:
    """Return each node's slot, with attributes right before it, and a start with the nodes that prepare its inputs."""
    slots = {}
    attributes = preparations = 0
    for place, node in enumerate(program.order):
        slots[node] = preparations if node in program.starts else attributes
        attributes = attributes if node.op == "get_attr" else place + 1
        preparations = preparations if program.is_preparation(node) else place + 1
    return slots


def _rearranged(program: OverlapProgram, slots: dict[torch.fx.Node, int]) -> dict[torch.fx.Node, Key]:
    """Put each wait before the node at its slot; a view stays unless a wait that it needs has passed it."""
    keys: dict[torch.fx.Node, Key] = {}
    for place, node in enumerate(program.order):
        slot = place
        if node in program.waits:
            slot = slots.get(node, place)
        elif node.op == "get_attr":
            slot = min((slots.get(user, place) for user in node.users), default=place)
        elif program.is_view_of_result(node):
            slot = max([place, *(keys[source][0] for source in program.before[node])])
        keys[node] = (slot, slot == place, place)
    return keys


class _Place(NamedTuple):
    """A node's position: before the original node at ``slot`` if it was moved there, at ``slot`` otherwise."""

    slot: int
    stays: bool
    owner: int
    original: int


def hoist_starts(
    program: OverlapProgram, order: Sequence[torch.fx.Node], claims: Reservations, *, groups_apart: bool
) -> Moves:
    """Move each start to right after its inputs, or as far as the bounds allow, the first start first.

    Args:
        program: required precedence.
        order: the initial program order.
        claims: the bounds for ``order``.
        groups_apart: let collectives pass those of other process groups.
    """
    return _Hoisting(program, order, claims, groups_apart).run()


class _Hoisting:
    def __init__(
        self, program: OverlapProgram, order: Sequence[torch.fx.Node], claims: Reservations, groups_apart: bool
    ) -> None:
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
        """Return the node that stops the start at ``slot``: the last unmoved one before it."""
        before = (self._order[i] for i in range(slot - 1, -1, -1))
        return next((node for node in before if self._places[node].stays), self._order[0])

    def _after_inputs(self, node: torch.fx.Node) -> int:
        """Return the first slot after everything that ``node`` must follow."""
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
        """Place ``start`` before the node at ``slot``, and the nodes that prepare its inputs before it."""
        waiting = [start]
        while waiting:
            node = waiting.pop()
            place = self._places[node]
            if place.slot > slot or (place.stays and place.slot == slot) or node is start:
                self._places[node] = _Place(slot, False, place.original, place.original)
                waiting += (source for source in self._program.before[node] if source in self._earliest)


@dataclass(frozen=True)
class _Span:
    """One wait, its collective's start, and the hiding ops between as a range of all hiding ops."""

    start: torch.fx.Node
    wait: torch.fx.Node
    begin: int
    end: int


class Hiding:
    """The nodes that hide each collective in a given order."""

    def __init__(self, program: OverlapProgram, order: Sequence[torch.fx.Node]) -> None:
        self._position = {node: i for i, node in enumerate(order)}
        positions = program.hiding(order)
        self._positions = positions
        self._nodes = [order[i] for i in positions]
        self._collectives = sorted(program.collectives, key=lambda c: self._position[c.start])

    def of(self, collective: Collective) -> tuple[torch.fx.Node, ...]:
        """Return the nodes between the start of ``collective`` and its first wait."""
        begin, end = self._range(collective.start, collective.waits[0])
        return tuple(self._nodes[begin:end])

    def _range(self, start: torch.fx.Node, wait: torch.fx.Node) -> tuple[int, int]:
        return tuple(bisect_left(self._positions, self._position[node]) for node in (start, wait))  # type: ignore[return-value]

    def edges(self) -> Iterator[Edge]:
        """Yield ``(before, after)`` pairs that keep the order."""
        spans = [_Span(c.start, w, *self._range(c.start, w)) for c in self._collectives for w in c.waits]
        spans = [span for span in spans if span.begin < span.end]
        yield from self._starts(spans)
        yield from self._waits(sorted(spans, key=lambda span: self._position[span.wait]))

    def _starts(self, spans: Sequence[_Span]) -> Iterator[Edge]:
        """Chain starts that are in flight together, and put each hiding op after the last of them."""
        previous: torch.fx.Node | None = None
        hidden_until = 0
        for span, follower in zip(spans, (*spans[1:], None), strict=False):
            if previous is not None and previous is not span.start and span.begin < hidden_until:
                yield previous, span.start
            previous, hidden_until = span.start, max(hidden_until, span.end)
            until = hidden_until if follower is None else min(hidden_until, follower.begin)
            yield from ((span.start, node) for node in self._nodes[span.begin : until])

    def _waits(self, spans: Sequence[_Span]) -> Iterator[Edge]:
        """Put each wait after the nodes that hide its collective, through earlier waits if possible."""
        reached: list[tuple[int, int, torch.fx.Node]] = []
        for span in spans:
            begin, missing = span.begin, span.end
            while reached and reached[-1][1] > span.begin:
                low, high, wait = reached.pop()
                yield from ((node, span.wait) for node in self._nodes[high:missing])
                yield wait, span.wait
                begin, missing = min(begin, low), low
            yield from ((node, span.wait) for node in self._nodes[span.begin : missing])
            reached.append((begin, span.end, span.wait))
