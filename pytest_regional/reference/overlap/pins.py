"""The edges that keep a plan: each start before what hides it, each wait after it.

No edge is asked for that others give: of the collectives in flight only the last start precedes a hiding op, since
starts follow each other, and a wait follows the previous one instead of all that the previous one follows. So edges
are linear in the number of collectives and hiding ops.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch.fx

from pytest_regional.reference.effects import Edge
from pytest_regional.reference.overlap.collectives import Collective
from pytest_regional.reference.overlap.program import Program


@dataclass(frozen=True)
class _Span:
    """One wait, its collective's start, and the hiding ops between as a range of all hiding ops."""

    start: torch.fx.Node
    wait: torch.fx.Node
    begin: int
    end: int


class Hiding:
    """What hides which collective in a given order."""

    def __init__(self, program: Program, order: Sequence[torch.fx.Node]) -> None:
        self._position = {node: i for i, node in enumerate(order)}
        positions = program.hiding(order)
        self._positions = positions
        self._nodes = [order[i] for i in positions]
        self._collectives = sorted(program.collectives, key=lambda c: self._position[c.start])

    def of(self, collective: Collective) -> tuple[torch.fx.Node, ...]:
        """Return what runs between the start of ``collective`` and its first wait."""
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
        """Put each wait after what hides its collective, through earlier waits where they reach."""
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
