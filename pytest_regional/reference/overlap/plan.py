"""What the pass did, for people and for tests."""

from __future__ import annotations

from dataclasses import dataclass

import torch.fx

from pytest_regional.reference.effects import Edge
from pytest_regional.reference.naming import shortened

BY_INPUTS = "inputs"


@dataclass(frozen=True)
class PlannedCollective:
    """One collective as it stands now.

    Attributes:
        start: the node that issues it.
        waits: the nodes that wait for it, in program order.
        op: what it does, such as ``all_reduce``.
        group: name of its process group.
        hidden_by: what runs between the start and the first wait and takes time.
        hidden_cost: the sum of the costs of ``hidden_by``.
        bytes_in_flight: its result, and the inputs that the graph computed for it.
        start_moved: how many nodes that stayed the start has passed on its way up.
        wait_moved: how many nodes that stayed the last wait has passed on its way down.
        stopped_by: what kept start and wait from moving further: ``inputs``, ``memory`` or ``in_flight``.
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
        """The first wait: the one that ends the overlap."""
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
    """What ``overlap_collectives`` did to a graph.

    Attributes:
        collectives: in the order in which they are issued now.
        peak_bytes_before: the most communication memory alive at once, before.
        peak_bytes_after: the same now; no more than the bound or ``peak_bytes_before``, whichever is more.
        peak_in_flight_before: the most collectives in flight at once, before.
        peak_in_flight_after: the same now; bounded in the same way.
        memory_bound: the bound in bytes, or None.
        in_flight: the bound on collectives in flight, or None.
        edges: the ``control_deps`` edges that were added, as ``(before, after)``.
        changed: whether the graph is another one than before.
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
