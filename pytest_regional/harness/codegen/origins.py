"""Which operators each launch computes: from Inductor's records while generating, else from its comments."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from pytest_regional._torch.codegen import RawLaunch
from pytest_regional._torch.operators import is_op_overload
from pytest_regional.harness.codegen import operators
from pytest_regional.harness.codegen.events import CodeEvent, Events, ExternCall, KernelLaunch, LaunchOrigin, Op
from pytest_regional.harness.codegen.reader import read_events

Origins = tuple[LaunchOrigin, ...]

_KEPT = 512
_generated_here: dict[bytes, Origins] = {}


def origins_of(launches: Sequence[RawLaunch], text: str) -> Origins:
    """Return the origins in ``launches`` for the kernels of wrapper ``text``, and keep them for when it is loaded."""
    owned = {node for launch in launches if launch.is_extern for node in _own(launch)}
    origins = tuple(_origin(launch, owned) for launch in launches if not launch.is_extern)
    _generated_here.pop(_digest(text), None)
    _generated_here[_digest(text)] = origins
    while len(_generated_here) > _KEPT:
        del _generated_here[next(iter(_generated_here))]
    return origins


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def origins_kept(text: str) -> Origins | None:
    """Return the origins recorded when this process generated ``text``, or None."""
    return _generated_here.get(_digest(text))


def _own(launch: RawLaunch) -> set[Any]:
    """Return the nodes of an extern call, without those that it only mentions because they make its inputs."""
    if launch.node is not None and is_op_overload(launch.node.target):
        return {launch.node}
    # Unknown, or an operator around it such as control_deps: use the called operator.
    called = operators.operator_called(launch.kernel)
    (_, mentioned), packet = launch.buffers[0], operators.packet_name(called) if called else None
    return {node for node in mentioned if operators.packet_name(str(node.target)) == packet}


def _origin(launch: RawLaunch, owned: set[Any]) -> LaunchOrigin:
    ops_of = tuple((name, _ops(nodes, owned)) for name, nodes in launch.buffers)
    ops = _unique(op for _, ops in ops_of for op in ops)
    return LaunchOrigin(launch.kernel, ops, ops_of, _grouped(launch, launch.loops), _grouped(launch, launch.parts))


def _grouped(launch: RawLaunch, numbers: Sequence[int]) -> tuple[tuple[str, ...], ...]:
    """Return the buffers of ``launch`` that have the same number, group by group."""
    groups: dict[int, list[str]] = {}
    for number, (name, _) in zip(numbers, launch.buffers, strict=False):
        groups.setdefault(number, []).append(name)
    return tuple(map(tuple, groups.values()))


def _unique(ops: Any) -> tuple[Op, ...]:
    return tuple(dict.fromkeys(ops))


def _ops(nodes: Sequence[Any], owned: set[Any]) -> tuple[Op, ...]:
    return _unique(_op(node) for node in nodes if is_op_overload(node.target) and node not in owned)


def _op(node: Any) -> Op:
    target, original = str(node.target), node.meta.get("original_aten")
    whole = operators.packet_name(str(original)) if original is not None else None
    return Op(target, whole if whole not in (None, operators.packet_name(target)) else None)


@lru_cache(maxsize=256)
def events_of(text: str, origins: Origins | None) -> Events:
    """Return the events of wrapper ``text``, with the operators of each launch if known.

    Raises:
        UnreadableCodeError: ``text`` is not a Python wrapper.
    """
    events = read_events(text)
    return Events(_with_origins(events, origins) if origins is not None else _guarded(events))


def _with_origins(events: list[CodeEvent], origins: Origins) -> list[CodeEvent]:
    """Give each launch the operators of the origin that makes one of its buffers, or of its kernel's next origin."""
    waiting: dict[str, deque[LaunchOrigin]] = {}
    shared = _shared_schedules(origins)
    for origin in origins:
        waiting.setdefault(origin.kernel, deque()).append(origin)
    found: dict[int, LaunchOrigin | None] = {}
    named: list[CodeEvent] = []
    for event in events:
        if isinstance(event, KernelLaunch):
            if event.line not in found:
                found[event.line] = _take(event, waiting.get(event.kernel))
            known = found[event.line]
            named += _with_origin(event, _own_parts(event, known, shared, events)) if known else [event]
        else:
            named.append(event)
    return named


def _shared_schedules(origins: Origins) -> frozenset[tuple[tuple[str, ...], ...]]:
    """Return the parts shared by several kernels: combined kernels, each of which computes some of the parts."""
    kernels: dict[tuple[tuple[str, ...], ...], set[str]] = {}
    for origin in origins:
        kernels.setdefault(origin.parts, set()).add(origin.kernel)
    return frozenset(parts for parts, names_ in kernels.items() if len(names_) > 1 and len(parts) > 1)


def _own_parts(
    event: KernelLaunch, origin: LaunchOrigin, shared: frozenset[Any], events: Sequence[CodeEvent]
) -> LaunchOrigin:
    """Take from ``origin`` the parts whose buffers another launch writes and ``event`` does not."""
    if origin.parts not in shared:
        return origin
    others = {name for e in events if isinstance(e, KernelLaunch) and e.line != event.line for name in e.writes}
    mine = set(event.writes)
    own = {name for part in origin.parts if mine.intersection(part) or not others.intersection(part) for name in part}
    ops_of = tuple((name, ops) for name, ops in origin.ops_of if name in own)
    return dataclasses.replace(origin, ops=_unique(op for _, ops in ops_of for op in ops), ops_of=ops_of)


def _with_origin(event: KernelLaunch, origin: LaunchOrigin) -> list[CodeEvent]:
    """Give ``event`` its operators, as one event per loop of a C++ function: separate loops are not fused."""
    loops = origin.loops if len(origin.loops) > 1 else (tuple(name for name, _ in origin.ops_of),)
    made = {name for names_ in loops for name in names_}
    events: list[CodeEvent] = []
    for number, buffers in enumerate(loops, 1):
        ops_of = tuple((name, ops) for name, ops in origin.ops_of if name in buffers)
        writes = tuple(name for name in event.writes if name in buffers or name not in made)
        ops = _unique(op for _, ops in ops_of for op in ops) if len(loops) > 1 else origin.ops
        events.append(dataclasses.replace(event, ops=ops, ops_of=ops_of, writes=writes, loop=number, loops=len(loops)))
    return events


def _take(event: KernelLaunch, waiting: deque[LaunchOrigin] | None) -> LaunchOrigin | None:
    if not waiting:
        return None
    chosen = next((o for o in waiting if {name for name, _ in o.ops_of} & set(event.writes)), waiting[0])
    waiting.remove(chosen)
    return chosen


def _guarded(events: list[CodeEvent]) -> list[CodeEvent]:
    """Remove from launches the operators that extern calls compute.

    Inductor also lists a matrix product as an origin of the kernel that copies its input.
    """
    called = {
        (event.comment.nodes[-1], operators.packet_name(op.name))
        for event in events
        if isinstance(event, ExternCall) and event.comment and event.comment.nodes
        for op in event.ops or ()
    }
    return [_without(event, called) if isinstance(event, KernelLaunch) else event for event in events]


def _without(event: KernelLaunch, called: set[tuple[str, str]]) -> CodeEvent:
    if not event.ops or not event.comment:
        return event
    elsewhere = {packet for node, packet in called if node in event.comment.nodes}
    left = tuple(op for op in event.ops if operators.packet_name(op.name) not in elsewhere)
    return dataclasses.replace(event, ops=left)
