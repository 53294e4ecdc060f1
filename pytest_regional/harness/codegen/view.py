"""The code of one graph: its pieces in order of generation, and the positions of operators in them."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from pytest_regional.harness.codegen.events import CodeAssertionError, CodeEvent, CodeLookupError, Events, rows
from pytest_regional.harness.codegen.operators import launches_of, matches, no_such_op, require_known
from pytest_regional.harness.codegen.places import CodePlace, Source, places_of
from pytest_regional.harness.ops import OpPattern

GRAPHS = ("forward", "backward", "inference", "unknown")
Position = tuple[int, int]
"""Number of the piece, position of the event in it."""


@dataclass(frozen=True)
class View:
    """The code of one graph.

    Attributes:
        graph: ``"forward"``, ``"backward"``, ``"inference"`` or ``"unknown"``.
        pieces: the events of each source.
        titles: the heading of each source.
        sources: the code itself.
    """

    graph: str
    pieces: tuple[Events, ...]
    titles: tuple[str, ...]
    sources: tuple[Source, ...] = ()

    def __getitem__(self, place: Position) -> CodeEvent:
        return self.pieces[place[0]][place[1]]

    def places(self, pattern: OpPattern) -> list[Position]:
        """Return the positions of the launches that match ``pattern``, in order."""
        found = [
            (n, position)
            for n, events in enumerate(self.pieces)
            for position, event in enumerate(events)
            if any(matches(pattern, op) for op in event.ops or ())
        ]
        return pattern.chosen(found)

    def failure(self, message: str, marked: Collection[Position]) -> CodeAssertionError:
        """Return the error with ``message`` and a table of the events, ``marked`` ones with a ``>``."""
        return CodeAssertionError(f"{message}\n{self.table(marked)}", self.code_places(marked))

    def code_places(self, marked: Iterable[Position]) -> tuple[CodePlace, ...]:
        """Return the lines of the ``marked`` events in the code."""
        by_piece: dict[int, list[CodeEvent]] = {}
        for place in marked:
            by_piece.setdefault(place[0], []).append(self[place])
        return tuple(place for n, events in by_piece.items() for place in places_of(self.sources[n], events))

    def table(self, marked: Collection[Position] = ()) -> str:
        """Return the events as a table, without pieces that have no mark if others do."""
        wanted = {piece for piece, _ in marked} or set(range(len(self.pieces)))
        lines = []
        for n in sorted(wanted):
            lines += [self.titles[n], *rows(self.pieces[n], {position for piece, position in marked if piece == n})]
        return "\n".join(lines)

    def lines(self, places: Iterable[Position]) -> str:
        """Return ``line 12`` or ``lines 12, 15``."""
        numbers = [str(self[place].line) for place in places]
        return f"line{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"


def views_of(sources: Sequence[Source], graph: str | None, region: str | None) -> list[View]:
    """Return one view per graph with code, restricted to ``graph`` and ``region`` if given.

    Raises:
        ValueError: unknown graph.
        CodeLookupError: nothing was generated, or nothing for that graph and region.
    """
    if graph is not None and graph not in GRAPHS:
        near = difflib.get_close_matches(graph, GRAPHS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{graph!r} is not a graph.{hint} Known: {', '.join(GRAPHS)}.")
    chosen = [s for s in sources if graph in (None, s.graph) and (region is None or region in s.regions)]
    if not any(launches_of(source.events) for source in chosen):
        raise CodeLookupError(_nothing(sources, graph, region))
    return [_view(kind, chosen) for kind in dict.fromkeys(source.graph for source in chosen)]


def _view(graph: str, sources: Sequence[Source]) -> View:
    mine = [source for source in sources if source.graph == graph]
    titles = (f"{graph} graph, source {n}, regions: {', '.join(s.regions) or 'none'}" for n, s in enumerate(mine, 1))
    return View(graph, tuple(source.events for source in mine), tuple(titles), tuple(mine))


def _nothing(sources: Sequence[Source], graph: str | None, region: str | None) -> str:
    wanted = " ".join(filter(None, [graph and f"of the {graph} graph", region and f"of region {region!r}"]))
    there = ", ".join(f"{s.graph} ({', '.join(s.regions) or 'no region'})" for s in sources)
    if not sources:
        return "there is no generated code: nothing was compiled with Inductor in this run, or nothing was loaded"
    return (
        f"there is no generated code {wanted} that launches anything; there are: {there}. Equal regions share the code "
        f"of the first."
    )


def views_holding(views: Sequence[View], patterns: Sequence[OpPattern]) -> list[View]:
    """Return the views in which all ``patterns`` have a match.

    Raises:
        CodeLookupError: the operators of a launch are unknown, or no single view has them all.
        OpError: a pattern matches nothing.
    """
    for view in views:
        for events in view.pieces:
            require_known(events)
    holding = [view for view in views if all(map(view.places, patterns))]
    if holding:
        return holding
    for pattern in patterns:
        if not any(view.places(pattern) for view in views):
            raise missing(views, pattern)
    where = "; ".join(f"{p} in {', '.join(v.graph for v in views if v.places(p))}" for p in patterns)
    raise CodeLookupError(f"no single graph has all of them: {where}. Name operators of one graph, or graph=.")


def missing(views: Sequence[View], pattern: OpPattern) -> Exception:
    """Return the error for a ``pattern`` without a match in ``views``."""
    events = [event for view in views for piece in view.pieces for event in piece]
    return no_such_op(pattern, events, " and ".join(f"the {view.graph} code" for view in views))
