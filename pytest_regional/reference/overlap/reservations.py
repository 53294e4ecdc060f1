"""Communication memory along a program, and how far it may grow within the bounds.

Communication memory at a position is the sum over the collectives' results, each from its start to its last reader, and
over values computed for a collective, each from the first start to the last wait that needs it. In flight at a position
are the collectives that have started and whose last wait has not run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch.fx

from pytest_regional.reference.overlap.collectives import Collective
from pytest_regional.reference.overlap.program import OverlapProgram


class SegmentTree:
    """One amount for each position; positions are half-open ranges everywhere."""

    def __init__(self, amounts: Sequence[int]) -> None:
        self._size = 1
        while self._size < len(amounts):
            self._size *= 2
        self._added = [0] * (2 * self._size)
        self._highest = [0] * self._size + list(amounts) + [0] * (self._size - len(amounts))
        for node in range(self._size - 1, 0, -1):
            self._highest[node] = max(self._highest[2 * node], self._highest[2 * node + 1])

    def add(self, begin: int, end: int, amount: int) -> None:
        """Raise all positions in ``[begin, end)`` by ``amount``."""
        if begin < end:
            self._add(begin, end, amount, 1, 0, self._size)

    def _add(self, begin: int, end: int, amount: int, node: int, left: int, right: int) -> None:
        if end <= left or right <= begin:
            return
        if begin <= left and right <= end:
            self._added[node] += amount
            self._highest[node] += amount
            return
        middle = (left + right) // 2
        self._add(begin, end, amount, 2 * node, left, middle)
        self._add(begin, end, amount, 2 * node + 1, middle, right)
        self._highest[node] = max(self._highest[2 * node], self._highest[2 * node + 1]) + self._added[node]

    def first_above(self, begin: int, end: int, threshold: int) -> int | None:
        """Return the first position in ``[begin, end)`` with an amount above ``threshold``."""
        return self._find(begin, end, threshold, False, 1, 0, self._size)

    def last_above(self, begin: int, end: int, threshold: int) -> int | None:
        """Return the last position in ``[begin, end)`` with an amount above ``threshold``."""
        return self._find(begin, end, threshold, True, 1, 0, self._size)

    def _find(self, begin: int, end: int, threshold: int, last: bool, node: int, left: int, right: int) -> int | None:
        if end <= left or right <= begin or self._highest[node] <= threshold:
            return None
        if right - left == 1:
            return left
        middle, rest = (left + right) // 2, threshold - self._added[node]
        halves = ((2 * node, left, middle), (2 * node + 1, middle, right))
        for half in reversed(halves) if last else halves:
            found = self._find(begin, end, rest, last, *half)
            if found is not None:
                return found
        return None


MEMORY = "memory"
IN_FLIGHT = "in_flight"


@dataclass(eq=False)
class Reservation:
    """``amount`` of one resource on all positions from ``begin`` up to, not including, ``end``."""

    amount: int
    begin: int
    end: int


@dataclass
class _Resource:
    name: str
    limit: int | None
    claims: list[Reservation] = field(default_factory=list)
    levels: SegmentTree | None = None

    def amounts(self, length: int) -> list[int]:
        steps = [0] * (length + 1)
        for claim in self.claims:
            steps[claim.begin] += claim.amount
            steps[claim.end] -= claim.amount
        return list(itertools.accumulate(steps))[:length]


class Reservations:
    """The reservations of a program's collectives for the given order."""

    def __init__(
        self, program: OverlapProgram, order: Sequence[torch.fx.Node], memory: int | None, in_flight: int | None
    ):
        self._position = {node: i for i, node in enumerate(order)}
        self._length = len(order)
        self._memory = _Resource(MEMORY, memory)
        self._in_flight = _Resource(IN_FLIGHT, in_flight)
        self._results = {c.start: self._result(program, c) for c in program.collectives}
        self._inputs: dict[torch.fx.Node, Reservation] = {}
        for collective in program.collectives:
            for root in program.inputs[collective.start]:
                self._hold(root, program, collective)
        self._flights = {c.start: Reservation(1, self._begin(c), self._end(c)) for c in program.collectives}
        self._read = program.inputs
        self._memory.claims = [*self._results.values(), *self._inputs.values()]
        self._in_flight.claims = list(self._flights.values())
        for resource in (self._memory, self._in_flight):
            if resource.limit is not None:
                resource.levels = SegmentTree(resource.amounts(self._length))

    def _begin(self, collective: Collective) -> int:
        return self._position[collective.start]

    def _end(self, collective: Collective) -> int:
        return max(self._position[wait] for wait in collective.waits) + 1

    def _result(self, program: OverlapProgram, collective: Collective) -> Reservation:
        ends = [self._end(collective)]
        for reader in program.readers[collective.start]:
            other = program.starts.get(reader)
            ends.append(self._position[reader] + 1 if other is None else self._end(other))
        return Reservation(program.size_of(collective.start), self._begin(collective), max(ends))

    def _hold(self, root: torch.fx.Node, program: OverlapProgram, collective: Collective) -> None:
        if root in self._results:  # the result of another collective: its reservation reaches this wait
            return
        begin, end = self._begin(collective), self._end(collective)
        claim = self._inputs.setdefault(root, Reservation(program.size_of(root), begin, end))
        claim.begin, claim.end = min(claim.begin, begin), max(claim.end, end)

    def peaks(self) -> tuple[int, int]:
        """Return the highest communication memory in bytes, and the highest number in flight."""
        return max(self._memory.amounts(self._length)), max(self._in_flight.amounts(self._length))

    def size_of(self, collective: Collective) -> int:
        """Return the bytes that ``collective`` holds while in flight, without results of other collectives."""
        held = (self._inputs[root].amount for root in self._read[collective.start] if root in self._inputs)
        return self._results[collective.start].amount + sum(held)

    def earliest(self, collective: Collective, lowest: int) -> tuple[int, str | None]:
        """Return the first position in ``[lowest, start]`` from which all bounds hold, and the bound that stops it."""
        stops = [
            (self._room_before(resource, claims, lowest, self._begin(collective)), resource.name)
            for resource, claims in self._held(collective)
        ]
        stop, name = max(stops, key=lambda pair: pair[0])
        return (stop, name) if stop > lowest else (lowest, None)

    def latest(self, collective: Collective, wait: torch.fx.Node, highest: int) -> tuple[int, str | None]:
        """Return the last position in ``(wait, highest]`` up to which all bounds hold, and the bound that stops it."""
        stops = [
            (self._room_after(resource, claims, self._position[wait] + 1, highest), resource.name)
            for resource, claims in self._held(collective)
        ]
        stop, name = min(stops, key=lambda pair: pair[0])
        return (stop, name) if stop < highest else (highest, None)

    def start_at(self, collective: Collective, begin: int) -> None:
        """Move the start of ``collective`` before position ``begin``."""
        for resource, claims in self._held(collective):
            for claim in claims:
                if begin < claim.begin:
                    _raise(resource, begin, claim.begin, claim.amount)
                    claim.begin = begin

    def wait_at(self, collective: Collective, end: int) -> None:
        """Move a wait for ``collective`` before position ``end``."""
        for resource, claims in self._held(collective):
            for claim in claims:
                if end > claim.end:
                    _raise(resource, claim.end, end, claim.amount)
                    claim.end = end

    def _held(self, collective: Collective) -> Iterator[tuple[_Resource, list[Reservation]]]:
        """Yield the reservations that grow with ``collective``: its inputs, its result, and its flight."""
        inputs = [self._inputs.get(root) or self._results[root] for root in self._read[collective.start]]
        yield self._memory, [*inputs, self._results[collective.start]]
        yield self._in_flight, [self._flights[collective.start]]

    def _room_before(self, resource: _Resource, claims: Sequence[Reservation], lowest: int, highest: int) -> int:
        if resource.levels is None or resource.limit is None:
            return lowest
        begins = sorted({claim.begin for claim in claims if lowest < claim.begin}, reverse=True)
        for high, low in itertools.pairwise((*begins, lowest)):
            added = sum(claim.amount for claim in claims if claim.begin >= high)
            found = resource.levels.last_above(low, high, resource.limit - added)
            if found is not None:
                return min(found + 1, highest)
        return lowest

    def _room_after(self, resource: _Resource, claims: Sequence[Reservation], lowest: int, highest: int) -> int:
        if resource.levels is None or resource.limit is None:
            return highest
        ends = sorted({claim.end for claim in claims if claim.end < highest})
        for low, high in itertools.pairwise((*ends, highest)):
            added = sum(claim.amount for claim in claims if claim.end <= low)
            found = resource.levels.first_above(low, high, resource.limit - added)
            if found is not None:
                return max(found, lowest)
        return highest


def _raise(resource: _Resource, begin: int, end: int, amount: int) -> None:
    if resource.levels is not None:
        resource.levels.add(begin, end, amount)
