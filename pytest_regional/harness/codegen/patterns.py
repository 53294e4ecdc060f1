"""Patterns such as ``"aten.add"``, ``"mm"`` or ``"aten.mm#2"``, and the events that they name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_regional.harness.codegen import operators
from pytest_regional.harness.codegen.errors import NoSuchOpError, UnknownOriginError
from pytest_regional.harness.codegen.events import CodeEvent, ExternCall, KernelLaunch, Op
from pytest_regional.harness.codegen.table import rows

OpLike = Any
"""A pattern as text, or a ``torch._ops.OpOverload`` or ``OpOverloadPacket``."""


@dataclass(frozen=True)
class OpPattern:
    """What a test calls an operator.

    Attributes:
        name: ``"aten.add"``, ``"aten.add.Tensor"``, or the end of a name such as ``"mm"``.
        inside: the operator that was decomposed into it (before a ``>``), or None.
        ordinal: which of its launches, from 1; None for all.
    """

    name: str
    inside: str | None = None
    ordinal: int | None = None

    @staticmethod
    def of(pattern: OpLike) -> OpPattern:
        """Read ``"aten.mm#2"``, ``"aten.silu>aten.exp"`` or an operator of PyTorch.

        Raises:
            TypeError: ``pattern`` is neither text nor an operator.
            ValueError: its ordinal is no number from 1.
        """
        if (
            not isinstance(pattern, str)
            and not hasattr(pattern, "overloads")
            and not hasattr(pattern, "overloadpacket")
        ):
            raise TypeError(f"an operator is named by text or by torch.ops..., not by {pattern!r}")
        whole, hash_sign, ordinal = str(pattern).partition("#")
        inside, arrow, name = whole.rpartition(">")
        if hash_sign and (not ordinal.isdecimal() or int(ordinal) < 1):
            raise ValueError(f"{pattern!r}: ordinals count the launches of an operator from 1, as in 'aten.mm#1'")
        if not name.replace(".", "").strip():
            raise ValueError(f"{pattern!r} names no operator")
        return OpPattern(_plain(name), _plain(inside) if arrow else None, int(ordinal) if ordinal else None)

    def matches(self, op: Op) -> bool:
        """Say whether ``op`` is meant: what the program said, or with ``>`` what that was decomposed into."""
        if self.inside is not None:
            return op.inside is not None and names_match(self.inside, op.inside) and names_match(self.name, op.name)
        return names_match(self.name, op.inside or op.name)

    def __str__(self) -> str:
        return (f"{self.inside}>" if self.inside else "") + self.name + (f"#{self.ordinal}" if self.ordinal else "")


def _plain(name: str) -> str:
    return name.strip().removeprefix("torch.ops.")


def names_match(pattern: str, name: str) -> bool:
    """Say whether ``pattern`` is ``name``, without overload, or without namespace."""
    namespace, packet, *overload = name.split(".")
    spellings = {packet, f"{namespace}.{packet}"}
    if overload:
        spellings |= {f"{packet}.{overload[0]}", f"{namespace}.{packet}.{overload[0]}"}
    return pattern in spellings


def launches_of(events: Iterable[CodeEvent]) -> list[CodeEvent]:
    """Return the events that compute something: launches, extern calls, collectives, waits and copies."""
    return [event for event in events if isinstance(event, (KernelLaunch, ExternCall))]


def require_known(events: Sequence[CodeEvent]) -> None:
    """Raise :class:`UnknownOriginError` when the operators of any launch are not known."""
    unknown = [n for n, event in enumerate(events) if event.ops is None]
    if unknown:
        raise UnknownOriginError(
            "the operators of the marked launches are not known: Inductor writes no comment above C++ kernels, and "
            "this code was loaded from a cache that another process filled, or generated while nobody listened. Let "
            "the test generate it (fresh caches are the default). The names of kernels are hints at best.\n"
            + "\n".join(rows(events, unknown))
        )


def no_such_op(pattern: OpPattern, events: Sequence[CodeEvent], where: str) -> NoSuchOpError:
    """Return the error for a pattern that names none of ``events``: what is there, and what may have happened."""
    there = list(dict.fromkeys(op.inside or op.name for event in events for op in event.ops or ()))
    near = difflib.get_close_matches(pattern.name, [*there, *map(_packet, there)], n=1, cutoff=0.7)
    explanations = (explain(pattern, events) for explain in (_as_ordinal, _as_part, _as_mention, _as_overload))
    guess = next(filter(None, explanations), f"Did you mean {near[0]!r}?" if near else "")
    lines = [f"no launch of {pattern} in {where}.", *filter(None, [guess])]
    lines.append(f"Operators there: {', '.join(there) or 'none'}.")
    lines.append(
        "Passes change operators before code is generated: aten.mm may become aten.addmm, views such as aten.t "
        "disappear, aten.silu is decomposed."
    )
    return NoSuchOpError(" ".join(lines[:-1]) + "\n" + lines[-1] + "\n" + "\n".join(rows(events)))


def _packet(name: str) -> str:
    return operators.packet_name(name)


def _as_part(pattern: OpPattern, events: Sequence[CodeEvent]) -> str:
    parts = [op for event in events for op in event.ops or () if op.inside and names_match(pattern.name, op.name)]
    return (
        f"It is a part of {parts[0].inside} there: write '{parts[0].inside}>{_packet(parts[0].name)}'." if parts else ""
    )


def _as_mention(pattern: OpPattern, events: Sequence[CodeEvent]) -> str:
    for event in events:
        comment = event.comment if isinstance(event, (KernelLaunch, ExternCall)) else None
        named = comment.operators if comment and event.ops else ()
        if any(names_match(pattern.name, name) for name in named if "." in name):
            return (
                f"The comment of {(event.ops or ())[0]} (line {event.line}) names it: an input's, or what it replaced."
            )
    return ""


def _as_ordinal(pattern: OpPattern, events: Sequence[CodeEvent]) -> str:
    every = OpPattern(pattern.name, pattern.inside)
    count = sum(any(map(every.matches, event.ops or ())) for event in events)
    return f"There are {count} of {every}." if pattern.ordinal and count else ""


def _as_overload(pattern: OpPattern, events: Sequence[CodeEvent]) -> str:
    there = (op.name for event in events for op in event.ops or ())
    packets = [name for name in there if name.count(".") == 1 and pattern.name.startswith(f"{name}.")]
    return f"Only the name {packets[0]!r} is known, not its overload: leave the overload out." if packets else ""
