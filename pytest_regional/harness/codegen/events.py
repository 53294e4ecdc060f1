"""What generated code does, as plain records."""

from __future__ import annotations

import contextlib
import io
import tokenize
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_regional._base.errors import RegionalError


@dataclass(frozen=True)
class Comment:
    """A comment naming the nodes and operators (without overloads) behind one launch or call.

    They are in graph order if it is ``sorted``; otherwise they come from several graphs.
    """

    line: int
    sorted: bool
    nodes: tuple[str, ...]
    operators: tuple[str, ...]


def comments_between(lines: list[str], first: int, last: int) -> dict[int, str]:
    """Return the comments of lines ``first`` to ``last`` (from 1, both included) by line, without the ``#``."""
    found: dict[int, str] = {}
    text = "\n".join([*lines[first - 1 : last], ""])
    with contextlib.suppress(tokenize.TokenError):  # an open bracket at the end
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                found[first - 1 + token.start[0]] = token.string.lstrip("# ")
    return found


def origin_comments(comments: dict[int, str]) -> list[Comment]:
    """Return those comments that name operators, in order."""
    found = []
    for line, text in sorted(comments.items()):
        kind, nodes, rest = text.partition("Source Nodes: [")
        names, _, operators = rest.partition("], Original ATen: [")
        if nodes:
            in_order = kind.startswith("Topologically")
            found.append(Comment(line, in_order, _comment_items(names), _comment_items(operators.rpartition("]")[0])))
    return found


def _comment_items(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


@dataclass(frozen=True)
class Op:
    """One operator that a kernel computes."""

    name: str  # ``"aten.add.Tensor"``, or ``"aten.add"`` if the overload is unknown
    inside: str | None = None  # the operator that was decomposed into this one, such as ``"aten.silu"``, or None

    def __str__(self) -> str:
        return f"{self.inside}>{self.name}" if self.inside else self.name


@dataclass(frozen=True)
class NestingLevel:
    """One nesting level of an event."""

    kind: str  # ``"if"``, ``"while"`` or ``"call"`` (of a subgraph's or partition's function)
    line: int  # the first line of the level, which differs for two calls of one function
    label: str  # the condition, or the name of the function
    arm: int = 0  # which arm of an ``if``, from 0


@dataclass(frozen=True, kw_only=True)
class CodeEvent:
    """One statement of the wrapper, in execution order."""

    #: ``"alias"`` (the name in ``writes`` refers to the values of ``reads``: a view, an element, an argument list),
    #: ``"reuse"`` (the memory of ``reads`` becomes the buffer in ``writes``), ``"free"`` (the names in ``reads`` are
    #: deleted), ``"assert"`` (a check of sizes, strides, alignment, or of the program's own assertion), ``"return"`` (a
    #: function returns ``reads``, and all its other names are deleted), ``"other"``, or a kind of a subclass
    kind: str = "other"
    line: int  # the line of the wrapper, from 1
    text: str  # that line, stripped
    reads: tuple[str, ...] = ()  # names of buffers and inputs read, if known
    writes: tuple[str, ...] = ()  # names of buffers and inputs written, if known
    ops: tuple[Op, ...] | None = ()  # the operators computed; None when unknown
    path: tuple[NestingLevel, ...] = ()  # the branches, loops and functions around it, outermost first
    #: number of the user's GPU stream that it runs on; empty for the stream that is current at the call
    stream: str = ""
    freed: bool = False  # of a reuse, whether the old name is deleted


@dataclass(frozen=True, kw_only=True)
class Allocate(CodeEvent):
    """Memory for the buffer in ``writes``; sizes, strides and dtype as the wrapper spells them."""

    kind: str = "allocate"
    size: tuple[str, ...] = ()
    stride: tuple[str, ...] = ()
    dtype: str = ""


@dataclass(frozen=True, kw_only=True)
class KernelLaunch(CodeEvent):
    """A launch of generated C++ or Triton code."""

    kind: str = "kernel"
    kernel: str = ""  # its name in the wrapper
    #: for each buffer written, the operators that made it, if Inductor recorded them
    ops_of: tuple[tuple[str, tuple[Op, ...]], ...] = ()
    loop: int = 1  # the number of this loop in a C++ function, from 1; each is a separate event, on the same line
    loops: int = 1  # how many loops the function has, if Inductor recorded them
    comment: Comment | None = None  # Inductor's comment on the origin of the launch


@dataclass(frozen=True, kw_only=True)
class ExternCall(CodeEvent):
    """A call of an operator without generated code."""

    #: ``"extern"``, ``"copy"`` (it only copies), ``"collective"`` (it starts one), ``"wait"`` (for one), or ``"sync"``
    #: (an event of GPU streams is recorded or waited for, or all work is)
    kind: str = "extern"
    function: str = ""  # as the wrapper calls it
    comment: Comment | None = None  # Inductor's comment on the origin of the call
    action: str = ""  # of a synchronization, the operator of namespace ``streams``, such as ``"record_event"``
    arguments: tuple[str, ...] = ()  # of a synchronization, numbers of the event and streams


class Events(tuple[CodeEvent, ...]):
    """Events in execution order; ``str()`` is a table."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(rows(self))

    def of_kind(self, kind: str) -> Events:
        """Return the events of ``kind``, such as ``"kernel"``."""
        return Events(event for event in self if event.kind == kind)


@dataclass(frozen=True)
class LaunchOrigin:
    """What Inductor recorded for one kernel launch."""

    kernel: str  # name of the kernel in the wrapper
    ops: tuple[Op, ...]  # operators that the kernel computes, without those of extern calls
    ops_of: tuple[tuple[str, tuple[Op, ...]], ...] = field(default=())  # the same for each buffer that the kernel makes
    #: the buffers of each loop of a C++ function, in order; empty for a kernel in one piece
    loops: tuple[tuple[str, ...], ...] = ()
    #: the buffers of each part that was scheduled for this kernel, alone or combined with others
    parts: tuple[tuple[str, ...], ...] = ()


class CodeAssertionError(RegionalError, AssertionError):
    """Generated code is not as asserted; the message lists its events with the offending lines marked.

    Attributes:
        places: those lines, as ``harness.codegen.kernels`` has them.
    """

    def __init__(self, message: str, places: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.places = tuple(places)


class UnreadableCodeError(RegionalError, ValueError):
    """Generated code is not a Python wrapper of a known form."""


class CodeLookupError(RegionalError, LookupError):
    """Nothing was generated for a graph or region, or it is not known which launch holds an operator."""


class UnknownSizeError(RegionalError, LookupError):
    """Buffers whose size in bytes cannot be computed from the code."""


def rows(events: Iterable[CodeEvent], marked: Collection[int] = ()) -> list[str]:
    """Return one line per event, ``>`` before those whose position is in ``marked``; aliases are left out."""
    lines = []
    for n, event in enumerate(events):
        if event.kind == "alias" and n not in marked:
            continue
        text = event.text if len(event.text) <= 100 else event.text[:97] + "..."
        if isinstance(event, KernelLaunch) and event.loops > 1:
            text += f"  (loop {event.loop} of {event.loops})"
        if event.stream:
            text += f"  (stream {event.stream})"
        if event.ops is None or event.ops:
            text += f"  [{ops_shown(event.ops)}]"
        lines.append(f"{'>' if n in marked else ' '} {event.line:5} {'  ' * len(event.path)}{event.kind:10} {text}")
    return lines


def ops_shown(ops: tuple[Op, ...] | None) -> str:
    """Return ``aten.mm.default, aten.silu(neg, exp, add, div)``."""
    if ops is None:
        return "ops unknown"
    pieces: dict[str, list[str]] = {}
    for op in ops:
        pieces.setdefault(op.inside or op.name, []).extend([op.name.split(".")[1]] if op.inside else [])
    return ", ".join(f"{name}({', '.join(inner)})" if inner else name for name, inner in pieces.items())


DEFAULT = ""
"""The stream that is current when the wrapper is called; wrappers name it only if they use others."""

# Functions that return a user's stream by number in a wrapper (torch 2.13, and 2.15).
STREAM_GETTERS = ("get_external_object_by_index", "_get_stream_by_index")


def is_ordered(events: Sequence[CodeEvent], first: int, second: int) -> bool:
    """Say whether the launch at ``first`` has ended on the GPU when the later one at ``second`` starts."""
    known = {event.stream for event in events}
    #: The streams on which all following work runs after the launch, and the events that are recorded after it.
    behind, marks = {events[first].stream}, set[str]()
    for sync in events[first + 1 : second]:
        if not isinstance(sync, ExternCall) or sync.kind != "sync":
            continue
        one, other = (*sync.arguments, "", "")[:2]
        # A number without a ``with`` is the stream around the wrapper.
        stream, other_stream = (index if index in known else DEFAULT for index in (one, other))
        if sync.action == "record_event" and other_stream in behind:
            marks.add(one)
        elif sync.action == "record_event":
            marks.discard(one)
        elif sync.action == "wait_event" and one in marks:
            behind.add(other_stream)
        elif sync.action == "wait_stream" and other_stream in behind:
            behind.add(stream)
        # Those where the host waits: everything launched afterwards runs later.
        elif (
            (sync.action == "synchronize_event" and one in marks)
            or (sync.action == "synchronize_stream" and stream in behind)
            or sync.action == "synchronize_device"
        ):
            return True
    return events[second].stream in behind
