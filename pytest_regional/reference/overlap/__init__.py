"""Collectives overlapped with compute: started early, waited for late, within a memory bound.

The pass itself is here, and moves nodes: waits down to their first use, with the views of their results, and starts up
to their inputs. ``program`` finds collectives, their waits and the cost of compute, holds the pass's view of a
graph, and enforces the memory bound.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch.fx

from pytest_regional._base.errors import RegionalValueError
from pytest_regional.reference.effects import Edge
from pytest_regional.reference.ordering.edges import add_control_deps, as_dependencies
from pytest_regional.reference.overlap.program import (
    Collective,
    Cost,
    OverlapProgram,
    Reservations,
    compute_cost,
    reads,
)
from pytest_regional.reference.regions import shortened

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


class _Hoisting:
    """Moves each start to right after its inputs, or as far as the bounds allow, the first start first.

    Args:
        program: required precedence.
        order: the initial program order.
        claims: the bounds for ``order``.
        groups_apart: let collectives pass those of other process groups.
    """

    def __init__(
        self, program: OverlapProgram, order: Sequence[torch.fx.Node], claims: Reservations, *, groups_apart: bool
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
            after_inputs = max([self._floor, *map(self._after, self._program.before[node])])
            if node in self._program.starts:
                self._hoist(self._program.starts[node], max(barrier, after_inputs))
            elif node in self._program.barriers:
                barrier = place + 1
            elif self._program.is_preparation(node):
                self._earliest[node] = after_inputs
        moved = {node for node, place in self._places.items() if not place.stays}
        stops = {}
        for start, (bound, slot) in self._stops.items():
            before = (self._order[i] for i in range(slot - 1, -1, -1))  # the last unmoved node stops it
            stops[start] = (bound, next((node for node in before if self._places[node].stays), self._order[0]))
        return Moves(sorted(self._order, key=self._places.__getitem__), moved, stops)

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
        waiting = [start]  # moves before the node at ``slot``, and the nodes that prepare its inputs before it
        while waiting:
            node = waiting.pop()
            place = self._places[node]
            if place.slot > slot or (place.stays and place.slot == slot) or node is start:
                self._places[node] = _Place(slot, False, place.original, place.original)
                waiting += (source for source in self._program.before[node] if source in self._earliest)
        for element in collective.elements:
            self._places[element] = _Place(slot, False, self._places[start].owner, self._places[element].original)
        self._last_start[queue] = self._after(start)


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
        self._positions = [i for i, node in enumerate(order) if program.hides(node) > 0]
        self._nodes = [order[i] for i in self._positions]
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


BY_INPUTS = "inputs"


@dataclass(frozen=True)
class PlannedCollective:
    """One collective after the pass.

    Attributes:
        start: the node that issues it.
        waits: the nodes that wait for it, in program order.
        op: its operator, such as ``all_reduce``.
        group: name of its process group.
        hidden_by: the nodes between the start and the first wait that take time.
        hidden_cost: the sum of the costs of ``hidden_by``.
        bytes_in_flight: its result, and its inputs that the graph computed.
        start_moved: how many unmoved nodes the start has passed upwards.
        wait_moved: how many unmoved nodes the last wait has passed downwards.
        stopped_by: why start and wait did not move further: ``inputs``, ``memory`` or ``in_flight``.
    """

    start: torch.fx.Node
    waits: tuple[torch.fx.Node, ...]
    op: str
    group: str
    hidden_by: tuple[torch.fx.Node, ...]
    hidden_cost: float
    bytes_in_flight: int
    start_moved: int
    wait_moved: int
    stopped_by: str

    @property
    def wait(self) -> torch.fx.Node:
        """The first wait, which ends the overlap."""
        return self.waits[0]

    @property
    def is_exposed(self) -> bool:
        """Whether nothing hides it."""
        return not self.hidden_by

    def __str__(self) -> str:
        hidden = shortened([node.name for node in self.hidden_by]) if self.hidden_by else "nothing"
        return (
            f"{self.op} {self.start.name} -> {self.wait.name} (group {self.group}): hidden by {hidden}; "
            f"{self.bytes_in_flight} bytes in flight; start {self.start_moved} up, wait {self.wait_moved} down, "
            f"stopped by {self.stopped_by}"
        )


@dataclass(frozen=True)
class OverlapPlan:
    """The result of ``overlap_collectives`` for a graph.

    Attributes:
        collectives: in their new order of issue.
        peak_bytes_before: peak communication memory before.
        peak_bytes_after: the same after; at most the bound or ``peak_bytes_before``, whichever is more.
        peak_in_flight_before: peak number of collectives in flight before.
        peak_in_flight_after: the same after; bounded in the same way.
        memory_bound: the bound in bytes, or None.
        in_flight: the bound on collectives in flight, or None.
        edges: the added ``control_deps`` edges, as ``(before, after)``.
        changed: whether the graph was changed.
    """

    collectives: tuple[PlannedCollective, ...] = ()
    peak_bytes_before: int = 0
    peak_bytes_after: int = 0
    peak_in_flight_before: int = 0
    peak_in_flight_after: int = 0
    memory_bound: int | None = None
    in_flight: int | None = None
    edges: tuple[Edge, ...] = ()
    changed: bool = False

    def of(self, node: torch.fx.Node) -> PlannedCollective:
        """Return the collective that ``node`` starts or waits for.

        Raises:
            KeyError: ``node`` is neither; the message lists the starts.
        """
        for collective in self.collectives:
            if node is collective.start or node in collective.waits:
                return collective
        known = ", ".join(collective.start.name for collective in self.collectives) or "none"
        raise KeyError(f"{node.name!r} neither starts nor waits for a collective of this plan; its starts: {known}")

    def __str__(self) -> str:
        bound = "no bound" if self.memory_bound is None else f"bound {self.memory_bound}"
        flights = "no bound" if self.in_flight is None else f"bound {self.in_flight}"
        return "\n".join(
            (
                f"{len(self.collectives)} collective(s), {len(self.edges)} edge(s) added",
                f"communication memory: peak {self.peak_bytes_before} -> {self.peak_bytes_after} bytes ({bound})",
                f"in flight: peak {self.peak_in_flight_before} -> {self.peak_in_flight_after} ({flights})",
                *(f"  {collective}" for collective in self.collectives),
            )
        )


_ORIGINAL_PEAK = "overlap_original_peak_bytes"


def overlap_collectives(
    graph: torch.fx.Graph,
    *,
    memory_bound: int | float | None = None,
    in_flight: int | None = None,
    cost: Cost = compute_cost,
) -> OverlapPlan:
    """Start each functional collective as early, and wait for it as late, as data flow and bounds allow.

    Collectives of one process group keep their order, so that all ranks issue them alike. The plan is pinned by
    ``control_deps`` edges. A second application changes nothing.

    Args:
        graph: a forward or backward ATen graph; changed in place. Its module needs ``recompile()`` before it is called.
        memory_bound: how much communication memory (results from start to last use, and values computed for a
            collective from start to last wait) may be alive at once: bytes, or, as a float, a factor of the unchanged
            graph's peak. No move exceeds it, but the unchanged graph's own peak is always allowed. None: no bound.
        in_flight: how many collectives may be in flight at once, bounded in the same way. None: no bound.
        cost: how much communication a node can hide, 0 for none; the same on all ranks.

    Raises:
        RegionalValueError: an invalid bound, or a collective without ``meta["val"]``.
    """
    _check(memory_bound, in_flight)
    program = OverlapProgram(graph, cost)
    if not program.collectives:
        return OverlapPlan(memory_bound=memory_bound if isinstance(memory_bound, int) else None, in_flight=in_flight)
    bytes_before, flights_before = Reservations(program, program.order, None, None).peaks()
    # A factor refers to the peak before this pass first changed the graph.
    peak = bytes_before
    for collective in program.collectives:
        peak = min(peak, collective.start.meta.setdefault(_ORIGINAL_PEAK, peak))
    limit = int(memory_bound * peak) if isinstance(memory_bound, float) else memory_bound
    schedule = _schedule(program, limit, in_flight)
    claims = Reservations(program, schedule.order, None, None)
    bytes_after, flights_after = claims.peaks()
    collectives = tuple(_planned(program, schedule, claims))
    edges = _apply(graph, program, schedule)
    return OverlapPlan(
        collectives=collectives,
        peak_bytes_before=bytes_before,
        peak_bytes_after=bytes_after,
        peak_in_flight_before=flights_before,
        peak_in_flight_after=flights_after,
        memory_bound=limit,
        in_flight=in_flight,
        edges=edges,
        changed=bool(edges) or schedule.order != program.order,
    )


def _check(memory_bound: int | float | None, in_flight: int | None) -> None:
    if isinstance(memory_bound, bool) or not isinstance(memory_bound, (int, float, type(None))):
        raise RegionalValueError(f"memory_bound must be bytes (int), a factor (float) or None, not {memory_bound!r}")
    if isinstance(memory_bound, float) and not 1.0 <= memory_bound < math.inf:
        raise RegionalValueError(
            f"memory_bound={memory_bound!r} is a factor of what the graph needs as it is, which no move makes less: "
            f"give 1.0 or more, or bytes as an int"
        )
    if isinstance(memory_bound, int) and memory_bound < 0:
        raise RegionalValueError(f"memory_bound={memory_bound!r} must not be negative")
    if in_flight is not None and (isinstance(in_flight, bool) or not isinstance(in_flight, int) or in_flight < 1):
        raise RegionalValueError(f"in_flight must be None or a whole number from 1 on, not {in_flight!r}")


def _schedule(program: OverlapProgram, memory: int | None, in_flight: int | None) -> Moves:
    sunk = sink_waits(program, Reservations(program, program.order, memory, in_flight))
    for wait, (_, other) in sunk.stops.items():
        if other in program.starts:
            program.require(wait, other)
    # Positions of starts under a bound in bytes depend on sizes, which may differ between ranks.
    claims = Reservations(program, sunk.order, memory, in_flight)
    hoisted = _Hoisting(program, sunk.order, claims, groups_apart=memory is None).run()
    return Moves(hoisted.order, sunk.moved | hoisted.moved, {**sunk.stops, **hoisted.stops})


def _apply(graph: torch.fx.Graph, program: OverlapProgram, schedule: Moves) -> tuple[Edge, ...]:
    hiding = Hiding(program, schedule.order)
    edges = dict.fromkeys((*hiding.edges(), *_bounds(program, schedule, hiding)))
    for previous, node in zip(schedule.order, schedule.order[1:], strict=False):
        if previous.next is not node:
            previous.append(node)
    return add_control_deps(graph, as_dependencies(edges)).added if edges else ()


def _bounds(program: OverlapProgram, schedule: Moves, hiding: Hiding) -> Iterator[Edge]:
    """Yield the edges that keep a start after the last use that frees its memory, or after a wait.

    Only if one of the two collectives is hidden: otherwise nothing is pinned.
    """
    for node, (_, other) in schedule.stops.items():
        before, after = (other, node) if node in program.starts else (node, other)
        concerned = (program.waits.get(before), program.starts.get(after))
        if after in program.starts and any(one is not None and hiding.of(one) for one in concerned):
            yield before, after


def _planned(program: OverlapProgram, schedule: Moves, claims: Reservations) -> Iterator[PlannedCollective]:
    """Yield the effect of ``schedule``, before it is applied, on each collective."""
    hiding = Hiding(program, schedule.order)
    position = {node: i for i, node in enumerate(schedule.order)}
    before = _stayed_before(program.order, schedule.moved)
    after = _stayed_before(schedule.order, schedule.moved)
    for collective in sorted(program.collectives, key=lambda c: position[c.start]):
        start, waits, hidden_by = collective.start, collective.waits, hiding.of(collective)
        reasons = dict.fromkeys(schedule.stops[node][0] for node in (start, *waits) if node in schedule.stops)
        yield PlannedCollective(
            start=start,
            waits=waits,
            op=collective.op,
            group=collective.group,
            hidden_by=hidden_by,
            hidden_cost=sum(map(program.hides, hidden_by)),
            bytes_in_flight=claims.size_of(collective),
            start_moved=before[start] - after[start],
            wait_moved=after[waits[-1]] - before[waits[-1]],
            stopped_by=" and ".join(reasons) or BY_INPUTS,
        )


def _stayed_before(order: Sequence[torch.fx.Node], moved: set[torch.fx.Node]) -> dict[torch.fx.Node, int]:
    """Return, for each node, how many nodes before it are not in ``moved``."""
    stayed = itertools.accumulate((int(node not in moved) for node in order), initial=0)
    return dict(zip(order, stayed, strict=False))
