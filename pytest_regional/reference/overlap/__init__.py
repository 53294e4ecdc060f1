"""Collectives overlapped with compute: started early, waited for late, within a memory bound.

The pass itself is here. ``collectives`` finds collectives, their waits and the cost of compute; ``program`` holds the
pass's view of a graph; ``reservations`` enforces the memory bound; ``motion`` moves nodes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch.fx

from pytest_regional._errors import RegionalValueError
from pytest_regional.reference.effects import Edge
from pytest_regional.reference.ordering.edges import add_control_deps
from pytest_regional.reference.overlap.collectives import Collective, Cost, compute_cost
from pytest_regional.reference.overlap.motion import Hiding, Moves, hoist_starts, sink_waits
from pytest_regional.reference.overlap.program import OverlapProgram
from pytest_regional.reference.overlap.reservations import Reservations
from pytest_regional.reference.regions import shortened

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
    before = Reservations(program, program.order, None, None).peaks()
    limit = _limit(program, memory_bound, before[0])
    schedule = _schedule(program, limit, in_flight)
    planning = _Planning(program, schedule)
    collectives = planning.collectives()
    edges = _apply(graph, program, schedule)
    return OverlapPlan(
        collectives=collectives,
        peak_bytes_before=before[0],
        peak_bytes_after=planning.peaks[0],
        peak_in_flight_before=before[1],
        peak_in_flight_after=planning.peaks[1],
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


def _limit(program: OverlapProgram, memory_bound: int | float | None, peak: int) -> int | None:
    """Return the bound in bytes; a factor refers to the peak before this pass first changed the graph."""
    for collective in program.collectives:
        peak = min(peak, collective.start.meta.setdefault(_ORIGINAL_PEAK, peak))
    return int(memory_bound * peak) if isinstance(memory_bound, float) else memory_bound


def _schedule(program: OverlapProgram, memory: int | None, in_flight: int | None) -> Moves:
    sunk = sink_waits(program, Reservations(program, program.order, memory, in_flight))
    for wait, (_, other) in sunk.stops.items():
        if other in program.starts:
            program.require(wait, other)
    # Positions of starts under a bound in bytes depend on sizes, which may differ between ranks.
    hoisted = hoist_starts(
        program, sunk.order, Reservations(program, sunk.order, memory, in_flight), groups_apart=memory is None
    )
    return Moves(hoisted.order, sunk.moved | hoisted.moved, {**sunk.stops, **hoisted.stops})


def _apply(graph: torch.fx.Graph, program: OverlapProgram, schedule: Moves) -> tuple[Edge, ...]:
    hiding = Hiding(program, schedule.order)
    edges = [*hiding.edges(), *_bounds(program, schedule, hiding)]
    for previous, node in zip(schedule.order, schedule.order[1:], strict=False):
        if previous.next is not node:
            previous.append(node)
    wanted: dict[torch.fx.Node, dict[torch.fx.Node, None]] = {}
    for before, after in edges:
        wanted.setdefault(after, {})[before] = None
    return add_control_deps(graph, {after: list(sources) for after, sources in wanted.items()}).added if wanted else ()


def _bounds(program: OverlapProgram, schedule: Moves, hiding: Hiding) -> Iterator[Edge]:
    """Yield the edges that keep a start after the last use that frees its memory, or after a wait.

    Only if one of the two collectives is hidden: otherwise nothing is pinned.
    """
    for node, (_, other) in schedule.stops.items():
        before, after = (other, node) if node in program.starts else (node, other)
        concerned = (program.waits.get(before), program.starts.get(after))
        if after in program.starts and any(one is not None and hiding.of(one) for one in concerned):
            yield before, after


class _Planning:
    """Computes the effect of a schedule before it is applied."""

    def __init__(self, program: OverlapProgram, schedule: Moves) -> None:
        self._program, self._stops = program, schedule.stops
        self._claims = Reservations(program, schedule.order, None, None)
        self.peaks = self._claims.peaks()
        self._hiding = Hiding(program, schedule.order)
        self._position = {node: i for i, node in enumerate(schedule.order)}
        self._before = _stayed_before(program.order, schedule.moved)
        self._after = _stayed_before(schedule.order, schedule.moved)

    def collectives(self) -> tuple[PlannedCollective, ...]:
        ordered = sorted(self._program.collectives, key=lambda c: self._position[c.start])
        return tuple(map(self._planned, ordered))

    def _planned(self, collective: Collective) -> PlannedCollective:
        hidden_by = self._hiding.of(collective)
        ends = (collective.start, *collective.waits)
        reasons = dict.fromkeys(self._stops[node][0] for node in ends if node in self._stops)
        return PlannedCollective(
            start=collective.start,
            waits=collective.waits,
            op=collective.op,
            group=collective.group,
            hidden_by=hidden_by,
            hidden_cost=sum(map(self._program.hides, hidden_by)),
            bytes_in_flight=self._claims.size_of(collective),
            start_moved=self._before[collective.start] - self._after[collective.start],
            wait_moved=self._after[collective.waits[-1]] - self._before[collective.waits[-1]],
            stopped_by=" and ".join(reasons) or BY_INPUTS,
        )


def _stayed_before(order: Sequence[torch.fx.Node], moved: set[torch.fx.Node]) -> dict[torch.fx.Node, int]:
    """Return, for each node, how many nodes before it are not in ``moved``."""
    stayed = itertools.accumulate((int(node not in moved) for node in order), initial=0)
    return dict(zip(order, stayed, strict=False))


__all__ = ["Cost", "OverlapPlan", "PlannedCollective", "RegionalValueError", "compute_cost", "overlap_collectives"]
