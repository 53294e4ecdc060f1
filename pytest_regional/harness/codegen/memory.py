"""Lifetimes of storage: a walk over events that follows names, views, reuses and frees."""

from __future__ import annotations

import ast
import functools
import itertools
import math
import operator as arithmetic
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pytest_regional.harness.codegen.events import Allocate, CodeEvent, ExternCall, NestingLevel, UnknownSizeError

Sizes = Mapping[str, int]
"""A test's values for symbols, and bytes for buffers."""


_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: arithmetic.add,
    ast.Sub: arithmetic.sub,
    ast.Mult: arithmetic.mul,
    ast.FloorDiv: arithmetic.floordiv,
    ast.Mod: arithmetic.mod,
    ast.Pow: pow,
}


def bytes_of(event: Allocate, hints: Sizes) -> int:
    """Return the size in bytes of an allocation's storage."""
    size = [_value(item, hints) for item in event.size]
    stride = [_value(item, hints) for item in event.stride]
    if math.prod(size) == 0:
        return 0
    dtype = getattr(torch, event.dtype.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise KeyError(event.dtype or "its dtype")
    return int(dtype.itemsize) * (1 + sum((extent - 1) * step for extent, step in zip(size, stride, strict=True)))


def _value(text: str, hints: Sizes) -> int:
    """Evaluate a size such as ``2*s0 + 1``; a symbol without a hint raises ``KeyError`` with its name."""
    return _evaluated(ast.parse(text, mode="eval").body, hints)


def _evaluated(node: ast.expr, hints: Sizes) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        return hints[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluated(node.operand, hints)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return _ARITHMETIC[type(node.op)](_evaluated(node.left, hints), _evaluated(node.right, hints))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("max", "min", "int"):
        values = [_evaluated(argument, hints) for argument in node.args]
        return values[0] if node.func.id == "int" else {"max": max, "min": min}[node.func.id](values)
    raise KeyError(ast.unparse(node))


@dataclass(frozen=True)
class Storage:
    """Memory allocated by one event; ``name`` is its first buffer."""

    number: int
    name: str
    size: int


@dataclass
class _State:
    """The storage of each name at one moment."""

    held: dict[str, tuple[Storage, ...]] = field(default_factory=dict)

    def live(self) -> set[Storage]:
        return {storage for storages in self.held.values() for storage in storages}

    def bytes(self) -> int:
        return sum(storage.size for storage in self.live())

    def of(self, name: str) -> tuple[Storage, ...]:
        base = name.partition("[")[0]
        return self.held.get(name) or (self.held.get(base, ()) if base != name else ())

    def forget(self, name: str) -> None:
        for key in [key for key in self.held if key == name or key.startswith(f"{name}[")]:
            del self.held[key]


@dataclass(frozen=True)
class Peak:
    """The most bytes alive at once, where, and the buffers alive there."""

    size: int = 0
    position: int | None = None
    buffers: tuple[str, ...] = ()


def peak_of(events: Sequence[CodeEvent], hints: Sizes) -> Peak:
    """Return the peak of the memory that the code itself allocates; inputs belong to the caller.

    For a branch, the arm that needs more counts. A loop is walked once.
    """
    walk = _Walk(hints)
    peak, _ = walk.run(list(enumerate(events)), _State(), 0)
    if walk.unknown:
        raise UnknownSizeError(
            "the size of these buffers is unknown; pass hints={name: value} with bytes for a buffer, a value for a "
            "symbol: " + "; ".join(walk.unknown)
        )
    return peak


class _Walk:
    def __init__(self, hints: Sizes) -> None:
        self.hints = hints
        self.unknown: list[str] = []
        self.numbers = itertools.count()

    def run(self, events: list[tuple[int, CodeEvent]], state: _State, depth: int) -> tuple[Peak, _State]:
        """Execute ``events``, all nested ``depth`` levels deep or deeper."""
        peak = Peak()
        for step, group in _levels(events, depth):
            if step is None:
                for position, event in group:
                    self.execute(event, state)
                    live = sorted(state.live(), key=lambda storage: storage.number)
                    buffers = tuple(f"{storage.name} ({storage.size})" for storage in live)
                    peak = _higher(peak, Peak(state.bytes(), position, buffers))
            elif step.kind == "if":
                arms = [list(arm) for _, arm in itertools.groupby(group, lambda item: item[1].path[depth].arm)]
                if len(arms) == 1:
                    arms.append([])  # one without events, such as a missing else, does nothing
                ends = [self.run(arm, _State(dict(state.held)), depth + 1) for arm in arms]
                peak = _higher(peak, *(arm_peak for arm_peak, _ in ends))
                state = max((after for _, after in ends), key=_State.bytes)
            else:
                inner, state = self.run(group, state, depth + 1)
                peak = _higher(peak, inner)
        return peak, state

    def execute(self, event: CodeEvent, state: _State) -> None:
        """Apply ``event`` to ``state``."""
        if isinstance(event, Allocate):
            for name in event.writes:
                state.forget(name)
                state.held[name] = (self._storage(name, lambda: bytes_of(event, self.hints)),)
        elif event.kind in ("alias", "reuse"):
            storages = tuple(storage for name in event.reads for storage in state.of(name))
            for name in event.reads if event.freed else ():
                state.forget(name)
            for name in event.writes:
                state.forget(name)
                if storages:
                    state.held[name] = storages
        elif event.kind == "free":
            for name in event.reads:
                state.forget(name)
        elif isinstance(event, ExternCall):
            for name in set(event.writes) - set(event.reads):
                # It allocates itself; ``out=`` and in-place results have memory already.
                if name not in state.held and event.text.startswith(f"{name} = "):
                    state.held[name] = (self._storage(name, functools.partial(self.hints.__getitem__, name)),)
        elif event.kind == "return":
            # The other names of the function that returns are gone; the caller's have another prefix.
            function = next((step.label for step in reversed(event.path) if step.kind == "call"), None)
            for name in list(state.held):
                mine = function is None or name.startswith(f"{function}_")
                if mine and not name.startswith(f"{function}_args") and name not in event.reads:
                    state.held.pop(name, None)

    def _storage(self, name: str, size: Callable[[], int]) -> Storage:
        try:
            return Storage(next(self.numbers), name, self.hints[name] if name in self.hints else size())
        except KeyError as missing:
            needed = f"{name} (made by a call)" if missing.args[0] == name else f"{name} (needs {missing.args[0]})"
            self.unknown.append(needed)
            return Storage(next(self.numbers), name, 0)


def _higher(*peaks: Peak) -> Peak:
    return max(peaks, key=lambda peak: peak.size)


def _levels(
    events: list[tuple[int, CodeEvent]], depth: int
) -> Iterator[tuple[NestingLevel | None, list[tuple[int, CodeEvent]]]]:
    """Group adjacent events by their level at ``depth``; the arms of one ``if`` are one group."""

    def key(item: tuple[int, CodeEvent]) -> tuple[Any, ...] | None:
        path = item[1].path
        return (path[depth].kind, path[depth].line, path[depth].label) if len(path) > depth else None

    for found, group in itertools.groupby(events, key):
        members = list(group)
        yield (members[0][1].path[depth] if found else None), members


def freed_at(events: Sequence[CodeEvent], made: int, buffer: str) -> int | None:
    """Return the position after ``made`` where the memory of ``buffer`` is deleted or reused, or None."""
    walk, state, wanted = _Walk(defaultdict(int)), _State(), set[Storage]()
    for position, event in enumerate(events):
        held = {storage for name in event.reads for storage in state.of(name)}
        if event.kind == "reuse" and held & wanted:
            return position
        walk.execute(event, state)
        if position == made:
            state.held.setdefault(buffer, (Storage(-1, buffer, 0),))
            wanted = set(state.of(buffer))
        elif wanted and not wanted & state.live():
            return position
    return None
