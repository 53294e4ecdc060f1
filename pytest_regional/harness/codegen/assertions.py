"""Assertions about generated code."""

from __future__ import annotations

import difflib
import functools
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_regional._base.text import plural
from pytest_regional.harness.codegen.events import (
    CodeAssertionError,
    CodeEvent,
    CodeLookupError,
    Events,
    ExternCall,
    KernelLaunch,
    Op,
    is_ordered,
    rows,
)
from pytest_regional.harness.codegen.kernels import CodePlace, only_moves, packet_name, places_of
from pytest_regional.harness.codegen.memory import freed_at, peak_of
from pytest_regional.harness.counters import Bound, bounds_of
from pytest_regional.harness.ops import OpError, OpLike, OpPattern, operator_spellings

if TYPE_CHECKING:
    from pytest_regional.harness.record import GeneratedSource

GRAPHS = ("forward", "backward", "inference", "unknown")
Position = tuple[int, int]
"""Number of the piece, position of the event in it."""


@dataclass(frozen=True)
class View:
    """The code of one graph."""

    graph: str  # ``"forward"``, ``"backward"``, ``"inference"`` or ``"unknown"``
    sources: tuple[GeneratedSource, ...]  # the code itself

    @functools.cached_property
    def pieces(self) -> tuple[Events, ...]:
        """The events of each source."""
        return tuple(source.events for source in self.sources)

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
            regions = ", ".join(self.sources[n].regions) or "none"
            lines.append(f"{self.graph} graph, source {n + 1}, regions: {regions}")
            lines += rows(self.pieces[n], {position for piece, position in marked if piece == n})
        return "\n".join(lines)

    def lines(self, places: Iterable[Position]) -> str:
        """Return ``line 12`` or ``lines 12, 15``."""
        numbers = [str(self[place].line) for place in places]
        return f"line{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"


def matches(pattern: OpPattern, op: Op) -> bool:
    """Say whether ``pattern`` names ``op``: the program's operator, or with ``>`` a part of its decomposition."""
    if pattern.inside is None:
        return pattern.is_called(operator_spellings(op.inside or op.name))
    held = op.inside is not None and pattern.inside in operator_spellings(op.inside)
    return held and pattern.is_called(operator_spellings(op.name))


def require_known(views: Sequence[View]) -> None:
    """Raise :class:`CodeLookupError` if the operators of a launch are unknown."""
    for events in (events for view in views for events in view.pieces):
        unknown = [n for n, event in enumerate(events) if event.ops is None]
        if unknown:
            raise CodeLookupError(
                "the operators of the marked launches are unknown: Inductor writes no comment above C++ kernels, and "
                "this code was loaded from a cache that another process filled, or generated while no harness was "
                "active. Let the test generate it (fresh caches are the default). Kernel names are only hints.\n"
                + "\n".join(rows(events, unknown))
            )


def missing(views: Sequence[View], pattern: OpPattern) -> OpError:
    """Return the error for a ``pattern`` without a match in ``views``: the operators there, and likely reasons."""
    events = [event for view in views for piece in view.pieces for event in piece]
    where = " and ".join(f"the {view.graph} code" for view in views)
    there = list(dict.fromkeys(op.inside or op.name for event in events for op in event.ops or ()))
    near = difflib.get_close_matches(pattern.name, [*there, *map(packet_name, there)], n=1, cutoff=0.7)
    guess = _likely_reason(pattern, events) or (f"Did you mean {near[0]!r}?" if near else "")
    said = [f"no launch of {pattern} in {where}.", guess, f"Operators there: {', '.join(there) or 'none'}."]
    remark = (
        "Passes change operators before code is generated: aten.mm may become aten.addmm, views such as aten.t "
        "disappear, aten.silu is decomposed."
    )
    return OpError("\n".join([" ".join(filter(None, said)), remark, *rows(events)]))


def _likely_reason(pattern: OpPattern, events: Sequence[CodeEvent]) -> str:
    every = replace(pattern, ordinal=None)
    count = sum(any(matches(every, op) for op in event.ops or ()) for event in events)
    if pattern.ordinal and count:
        return f"There are {count} of {every}."
    ops = [op for event in events for op in event.ops or ()]
    for op in ops:
        if op.inside and pattern.name in operator_spellings(op.name):
            return f"It is part of {op.inside} there: write '{op.inside}>{packet_name(op.name)}'."
    for event in events:
        comment = event.comment if isinstance(event, (KernelLaunch, ExternCall)) else None
        named = comment.operators if comment and event.ops else ()
        if any(pattern.name in operator_spellings(name) for name in named if "." in name):
            return f"The comment of {(event.ops or ())[0]} (line {event.line}) names it as an input or a replaced one."
    for op in ops:
        if op.name.count(".") == 1 and pattern.name.startswith(f"{op.name}."):
            return f"Only the name {op.name!r} is known, not its overload: leave the overload out."
    if pattern.is_known and not pattern.is_operator:
        return f"Generated code calls operators of torch.ops, and {pattern} is not one."
    return ""


def views_holding(views: Sequence[View], patterns: Sequence[OpPattern]) -> list[View]:
    """Return the views in which all ``patterns`` have a match."""
    require_known(views)
    holding = [view for view in views if all(map(view.places, patterns))]
    if holding:
        return holding
    for pattern in patterns:
        if not any(view.places(pattern) for view in views):
            raise missing(views, pattern)
    where = "; ".join(f"{p} in {', '.join(v.graph for v in views if v.places(p))}" for p in patterns)
    raise CodeLookupError(f"no single graph has all of them: {where}. Name operators of one graph, or graph=.")


class CodeAssertions:
    """The assertions of :class:`~pytest_regional.harness.record.GeneratedCode`.

    All of them take ``graph=`` (``"forward"``, ``"backward"`` or ``"inference"``) and ``region=`` to check a part of
    the code. A pattern without a match, unreadable code and launches of unknown origin are errors, never a pass.
    """

    sources: tuple[GeneratedSource, ...]

    def _views(self, graph: str | None, region: str | None) -> list[View]:
        """Return one view per graph with code, restricted to ``graph`` and ``region`` if given."""
        if graph is not None and graph not in GRAPHS:
            near = difflib.get_close_matches(graph, GRAPHS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{graph!r} is not a graph.{hint} Known: {', '.join(GRAPHS)}.")
        if not self.sources:
            raise CodeLookupError(
                "there is no generated code: nothing was compiled with Inductor in this run, or nothing was loaded"
            )
        chosen = [s for s in self.sources if graph in (None, s.graph) and (region is None or region in s.regions)]
        if not any(isinstance(event, KernelLaunch | ExternCall) for source in chosen for event in source.events):
            wanted = " ".join(filter(None, [graph and f"of the {graph} graph", region and f"of region {region!r}"]))
            there = ", ".join(f"{s.graph} ({', '.join(s.regions) or 'no region'})" for s in self.sources)
            raise CodeLookupError(
                f"there is no generated code {wanted} that launches anything; there are: {there}. Equal regions share "
                f"the code of the first."
            )
        kinds = dict.fromkeys(source.graph for source in chosen)
        return [View(kind, tuple(source for source in chosen if source.graph == kind)) for kind in kinds]

    @property
    def events(self) -> Events:
        """The events of all sources, in order."""
        return Events(itertools.chain.from_iterable(source.events for source in self.sources))

    def assert_order(self, *ops: OpLike, graph: str | None = None, region: str | None = None) -> None:
        """Assert that every launch of each operator comes before every launch of the next.

        Raises:
            CodeAssertionError: one does not, both are fused into one kernel, or they run on different GPU streams
                without synchronization.
        """
        patterns = _at_least_two(ops)
        for view in views_holding(self._views(graph, region), patterns):
            for groups in _comparable(view, patterns):
                for (before, first), (after, second) in itertools.pairwise(zip(patterns, groups, strict=True)):
                    _check_order(view, before, first, after, second)

    def assert_not_fused(self, *ops: OpLike, graph: str | None = None, region: str | None = None) -> None:
        """Assert that no kernel computes two of the operators.

        Raises:
            CodeAssertionError: one does.
        """
        patterns = _at_least_two(ops)
        for view in views_holding(self._views(graph, region), patterns):
            for one, other in itertools.combinations(patterns, 2):
                both = sorted(set(view.places(one)) & set(view.places(other)))
                if both:
                    raise view.failure(f"{one} and {other} are fused into one kernel ({view.lines(both)})", both)

    def assert_fused(self, *ops: OpLike, graph: str | None = None, region: str | None = None) -> None:
        """Assert that every kernel that computes one of the operators computes the others too.

        Raises:
            CodeAssertionError: one does not.
        """
        patterns = _at_least_two(ops)
        for view in views_holding(self._views(graph, region), patterns):
            places = [set(view.places(pattern)) for pattern in patterns]
            apart = sorted(set[Position]().union(*places) - places[0].intersection(*places[1:]))
            if apart:
                named = ", ".join(map(str, patterns))
                raise view.failure(f"{named} are not fused: {view.lines(apart)} compute only some of them", apart)

    def assert_count(self, op: OpLike, n: int | Bound, *, graph: str | None = None, region: str | None = None) -> None:
        """Assert how many launches and extern calls compute the operator; accepts ``at_most(n)`` and ``at_least(n)``.

        Raises:
            CodeAssertionError: the number differs.
        """
        bound, pattern = bounds_of({"graphs": n})["graphs"], OpPattern.of(op)
        views = self._views(graph, region)
        require_known(views)
        found = [(view, place) for view in views for place in view.places(pattern)]
        if not found and not (bound.admits(0) and pattern.is_operator):
            raise missing(views, pattern)
        launches = {(id(view), place[0], view[place].line, view[place].path) for view, place in found}
        if not bound.admits(len(launches)):
            shown = [view.table([place for v, place in found if v is view]) for view in views]
            places = [one for view in views for one in view.code_places([place for v, place in found if v is view])]
            message = f"{pattern}: expected {bound} launches, found {len(launches)}"
            raise CodeAssertionError("\n".join([message, *shown]), places)

    def assert_freed_before(
        self, op_or_buffer: OpLike, op: OpLike, *, graph: str | None = None, region: str | None = None
    ) -> None:
        """Assert that the first one's result is deleted or reused before the first launch of ``op``.

        Raises:
            CodeAssertionError: it is still alive.
        """
        views = self._views(graph, region)
        written = {name for view in views for events in view.pieces for event in events for name in event.writes}
        is_buffer = isinstance(op_or_buffer, str) and op_or_buffer in written
        first, second = None if is_buffer else OpPattern.of(op_or_buffer), OpPattern.of(op)
        for view in views_holding(views, [pattern for pattern in (first, second) if pattern]):
            used = view.places(second)
            made = view.places(first) if first else _writers(view, op_or_buffer)
            made = [place for place in made if any(piece == place[0] for piece, _ in used)]
            if not made:
                raise CodeLookupError(
                    f"no source of the {view.graph} graph contains both {op_or_buffer} and {second}; buffers that "
                    f"cross sources belong to the code around them"
                )
            for place in made:
                user = min(one for one in used if one[0] == place[0])
                for buffer in _buffers(view, place, first) if first else (op_or_buffer,):
                    _check_freed(view, place, buffer, user, second)

    def assert_peak_live_bytes(
        self,
        *,
        at_most: int,
        hints: Mapping[str, int] | None = None,
        graph: str | None = None,
        region: str | None = None,
    ) -> None:
        """Assert how much memory the code itself holds at most: allocations until they are freed or reused.

        Inputs belong to the caller and do not count. Every source is checked on its own.

        Args:
            at_most: bytes.
            hints: values of symbolic sizes, and bytes of buffers allocated by extern calls.
            graph: check this graph only.
            region: check this region only.

        Raises:
            CodeAssertionError: it is more; the message lists the buffers alive at the peak.
            UnknownSizeError: a size is unknown.
        """
        for view in self._views(graph, region):
            for n, events in enumerate(view.pieces):
                peak = peak_of(events, hints or {})
                if peak.size > at_most:
                    message = f"{peak.size} bytes are alive at once, more than {at_most}: {', '.join(peak.buffers)}"
                    raise view.failure(message, [(n, peak.position or 0)])

    def assert_no_copy(self, *, graph: str | None = None, region: str | None = None) -> None:
        """Assert that no call and no kernel only copies.

        Raises:
            CodeAssertionError: one does.
        """
        views = self._views(graph, region)
        require_known(views)
        for view in views:
            copies = [(n, i) for n, events in enumerate(view.pieces) for i, e in enumerate(events) if _only_copies(e)]
            if copies:
                raise view.failure(f"{plural(len(copies), 'event')} only copy: {view.lines(copies)}", copies)


def _at_least_two(ops: Sequence[OpLike]) -> list[OpPattern]:
    if len(ops) < 2:
        raise TypeError(f"name at least two operators, not {len(ops)}")
    patterns = list(map(OpPattern.of, ops))
    for one, other in itertools.combinations(patterns, 2):
        if one == other:
            raise ValueError(
                f"{one} is named twice; ordinals tell launches of one operator apart: '{one}#1', '{one}#2'"
            )
    return patterns


def _comparable(view: View, patterns: Sequence[OpPattern]) -> list[list[list[Position]]]:
    """Return, for each stretch of code to check, the positions of each pattern.

    A stretch is a source that contains all of them; without such a source, the whole graph, if each pattern occurs in
    one source only.
    """
    places = [view.places(pattern) for pattern in patterns]
    pieces = [{piece for piece, _ in found} for found in places]
    shared = sorted(set.intersection(*pieces))
    if shared:
        return [[[place for place in found if place[0] == piece] for found in places] for piece in shared]
    spread = [pattern for pattern, found in zip(patterns, pieces, strict=True) if len(found) > 1]
    if spread:
        raise CodeLookupError(
            f"no source of the {view.graph} graph contains all of {', '.join(map(str, patterns))}, and "
            f"{', '.join(map(str, spread))} occur in several: name region=, or one launch as in '{spread[0].name}#1'"
        )
    return [places]


def _check_order(
    view: View, before: OpPattern, first: list[Position], after: OpPattern, second: list[Position]
) -> None:
    both = sorted(set(first) & set(second))
    if both:
        raise view.failure(f"{before} and {after} are fused into one kernel ({view.lines(both)})", both)
    pairs = [(a, b) for a, b in itertools.product(first, second) if not _exclusive(view[a], view[b])]
    if not pairs:
        raise CodeLookupError(f"{before} and {after} are in different arms of a branch, so they never both run")
    wrong = [(a, b) for a, b in pairs if a > b]
    if wrong:
        late, early = sorted({a for a, _ in wrong}), sorted({b for _, b in wrong})
        message = f"{before} ({view.lines(late)}) does not come before {after} ({view.lines(early)})"
        raise view.failure(message, [*late, *early])
    unordered = [(a, b) for a, b in pairs if a[0] == b[0] and not is_ordered(view.pieces[a[0]], a[1], b[1])]
    if unordered:
        one, other = sorted({a for a, _ in unordered}), sorted({b for _, b in unordered})
        message = f"{before} ({view.lines(one)}) and {after} ({view.lines(other)}) run on different streams"
        raise view.failure(f"{message}, and the later does not wait for the earlier", [*one, *other])


def _exclusive(one: CodeEvent, other: CodeEvent) -> bool:
    """Say whether the two are in different arms of one branch."""
    for a, b in zip(one.path, other.path, strict=False):
        if a != b:
            return a.kind == "if" == b.kind and a.line == b.line
    return False


def _writers(view: View, buffer: str) -> list[Position]:
    """Return where ``buffer`` is first written in each piece."""
    found = [(n, i) for n, events in enumerate(view.pieces) for i, e in enumerate(events) if buffer in e.writes]
    return [next(place for place in found if place[0] == piece) for piece in dict.fromkeys(p for p, _ in found)]


def _buffers(view: View, written: Position, pattern: OpPattern) -> tuple[str, ...]:
    """Return the buffers that ``pattern`` writes in a launch, or all buffers of the launch if unknown."""
    event = view[written]
    computed = event.ops_of if isinstance(event, KernelLaunch) else ()
    mine = tuple(name for name, ops in computed if any(matches(pattern, op) for op in ops) and name in event.writes)
    if not (mine or event.writes):
        raise OpError(f"the buffers that {pattern} writes are unknown: {event.text} (line {event.line})")
    return mine or event.writes


def _check_freed(view: View, written: Position, buffer: str, used: Position, second: OpPattern) -> None:
    piece, made = written
    freed = freed_at(view.pieces[piece], made, buffer)
    if freed is None or freed > used[1]:
        when = "never freed here" if freed is None else f"freed only at {view.lines([(piece, freed)])}"
        marked = [written, used, *([(piece, freed)] if freed is not None else [])]
        message = f"{buffer} ({view.lines([written])}) is not freed before {second} ({view.lines([used])}): {when}"
        raise view.failure(message, marked)


def _only_copies(event: CodeEvent) -> bool:
    """Say whether ``event`` copies, or is a kernel with a buffer (or all) made by copying only."""
    if not isinstance(event, KernelLaunch):
        return event.kind == "copy"
    made = [ops for name, ops in event.ops_of if name in event.writes] or [event.ops or ()]
    return any(all(only_moves(op.name) for op in ops) for ops in made)
