"""Assertions about generated code."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_regional._text import plural
from pytest_regional.harness.codegen.events import (
    CodeAssertionError,
    CodeEvent,
    CodeLookupError,
    Copy,
    Events,
    KernelLaunch,
    is_ordered,
)
from pytest_regional.harness.codegen.memory import freed_at, peak_of
from pytest_regional.harness.codegen.operators import matches, only_moves, require_known
from pytest_regional.harness.codegen.view import Position, View, missing, views_holding, views_of
from pytest_regional.harness.counters import Bound, bounds_of
from pytest_regional.harness.ops import OpError, OpLike, OpPattern


class CodeAssertions:
    """The assertions of :class:`~pytest_regional.harness.record.GeneratedCode`.

    All of them take ``graph=`` (``"forward"``, ``"backward"`` or ``"inference"``) and ``region=`` to check a part of
    the code. A pattern without a match, unreadable code and launches of unknown origin are errors, never a pass.
    """

    sources: tuple[Any, ...]

    def _views(self, graph: str | None, region: str | None) -> list[View]:
        return views_of(self.sources, graph, region)

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
        _require_known(views)
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
        buffer = op_or_buffer if isinstance(op_or_buffer, str) and _is_buffer(views, op_or_buffer) else None
        first, second = None if buffer else OpPattern.of(op_or_buffer), OpPattern.of(op)
        for view in views_holding(views, [pattern for pattern in (first, second) if pattern]):
            made = view.places(first) if first else _writers(view, str(buffer))
            for piece, written, user in _used_in_same_piece(view, made, view.places(second), f"{op_or_buffer}", second):
                _check_freed(view, written, _buffers(view, written, first, buffer), (piece, user), second)

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
        _require_known(views)
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


def _require_known(views: Sequence[View]) -> None:
    for view in views:
        for events in view.pieces:
            require_known(events)


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


def _is_buffer(views: Sequence[View], name: str) -> bool:
    return any(name in event.writes for view in views for events in view.pieces for event in events)


def _writers(view: View, buffer: str) -> list[Position]:
    """Return where ``buffer`` is first written."""
    found = [(n, i) for n, events in enumerate(view.pieces) for i, e in enumerate(events) if buffer in e.writes]
    return [next(place for place in found if place[0] == piece) for piece in dict.fromkeys(p for p, _ in found)]


def _used_in_same_piece(
    view: View, made: list[Position], used: list[Position], name: str, second: OpPattern
) -> list[tuple[int, Position, int]]:
    found = [
        (place[0], place, min(i for piece, i in used if piece == place[0]))
        for place in made
        if any(piece == place[0] for piece, _ in used)
    ]
    if not found:
        raise CodeLookupError(
            f"no source of the {view.graph} graph contains both {name} and {second}; buffers that cross sources belong "
            f"to the code around them"
        )
    return found


def _buffers(view: View, written: Position, pattern: OpPattern | None, buffer: str | None) -> tuple[str, ...]:
    """Return the buffers that ``pattern`` writes in a launch, or all buffers of the launch if unknown."""
    if buffer or pattern is None:
        return (str(buffer),)
    event = view[written]
    computed = event.ops_of if isinstance(event, KernelLaunch) else ()
    mine = tuple(name for name, ops in computed if any(matches(pattern, op) for op in ops) and name in event.writes)
    if not (mine or event.writes):
        raise OpError(f"the buffers that {pattern} writes are unknown: {event.text} (line {event.line})")
    return mine or event.writes


def _check_freed(view: View, written: Position, buffers: tuple[str, ...], used: Position, second: OpPattern) -> None:
    piece, made = written
    for buffer in buffers:
        freed = freed_at(view.pieces[piece], made, buffer)
        if freed is None or freed > used[1]:
            when = "never freed here" if freed is None else f"freed only at {view.lines([(piece, freed)])}"
            marked = [written, used, *([(piece, freed)] if freed is not None else [])]
            message = f"{buffer} ({view.lines([written])}) is not freed before {second} ({view.lines([used])}): {when}"
            raise view.failure(message, marked)


def _only_copies(event: CodeEvent) -> bool:
    """Say whether ``event`` copies, or is a kernel with a buffer (or all) made by copying only."""
    if isinstance(event, Copy) or not isinstance(event, KernelLaunch):
        return isinstance(event, Copy)
    made = [ops for name, ops in event.ops_of if name in event.writes] or [event.ops or ()]
    return any(all(only_moves(op.name) for op in ops) for ops in made)
