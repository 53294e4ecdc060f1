"""What generated code does, as plain records."""

from __future__ import annotations

import contextlib
import io
import tokenize
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pytest_regional._base.errors import RegionalError

NODES, OPERATORS = "Source Nodes: [", "], Original ATen: ["


@dataclass(frozen=True)
class Comment:
    """A comment naming the operators behind one launch or call.

    Attributes:
        line: its line, from 1.
        sorted: whether its names are in graph order; False if they come from several graphs.
        nodes: names of the nodes that contributed.
        operators: their operators, such as ``"aten.mm"``, without overloads.
    """

    line: int
    sorted: bool
    nodes: tuple[str, ...]
    operators: tuple[str, ...]


def comments_between(lines: list[str], first: int, last: int) -> dict[int, str]:
    """Return the comments of lines ``first`` to ``last`` (from 1, both included) by line, without the ``#``."""
    chunk = lines[first - 1 : last]
    if any("'''" in line or '"""' in line or line.endswith("\\") for line in chunk):
        return {first + row: text for row, text in _comments("\n".join(chunk))}
    # No string or statement spans lines here: the few lines that may hold a comment are enough.
    candidates = [(number, line) for number, line in enumerate(chunk, first) if "#" in line]
    return {number: text for number, line in candidates for _, text in _comments(line.strip())}


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield row, from 0, and text of each comment; an open bracket at the end is no error."""
    with contextlib.suppress(tokenize.TokenError):
        for token in tokenize.generate_tokens(io.StringIO(text + "\n").readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0] - 1, token.string.lstrip("# ")


def origin_comments(comments: dict[int, str]) -> list[Comment]:
    """Return those comments that name operators, in order."""
    found = []
    for line, text in sorted(comments.items()):
        kind, nodes, rest = text.partition(NODES)
        names, _, operators = rest.partition(OPERATORS)
        if nodes:
            in_order = kind.startswith("Topologically")
            found.append(Comment(line, in_order, _comment_items(names), _comment_items(operators.rpartition("]")[0])))
    return found


def _comment_items(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


@dataclass(frozen=True)
class Op:
    """One operator that a kernel computes.

    Attributes:
        name: ``"aten.add.Tensor"``, or ``"aten.add"`` if the overload is unknown.
        inside: the operator that was decomposed into this one, such as ``"aten.silu"``, or None.
    """

    name: str
    inside: str | None = None

    def __str__(self) -> str:
        return f"{self.inside}>{self.name}" if self.inside else self.name


@dataclass(frozen=True)
class NestingLevel:
    """One nesting level of an event.

    Attributes:
        kind: ``"if"``, ``"while"`` or ``"call"`` (of a subgraph's or partition's function).
        line: the first line of the level, which differs for two calls of one function.
        label: the condition, or the name of the function.
        arm: which arm of an ``if``, from 0.
    """

    kind: str
    line: int
    label: str
    arm: int = 0


@dataclass(frozen=True, kw_only=True)
class CodeEvent:
    """One statement of the wrapper, in execution order.

    Attributes:
        line: the line of the wrapper, from 1.
        text: that line, stripped.
        reads: names of buffers and inputs read, if known.
        writes: names of buffers and inputs written, if known.
        ops: the operators computed; None when unknown.
        path: the branches, loops and functions around it, outermost first.
        stream: number of the user's GPU stream that it runs on; empty for the stream that is current at the call.
    """

    kind: ClassVar[str] = "other"
    line: int
    text: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    ops: tuple[Op, ...] | None = ()
    path: tuple[NestingLevel, ...] = ()
    stream: str = ""


@dataclass(frozen=True, kw_only=True)
class Allocate(CodeEvent):
    """Memory for the buffer in ``writes``; sizes, strides and dtype as the wrapper spells them."""

    kind: ClassVar[str] = "allocate"
    size: tuple[str, ...] = ()
    stride: tuple[str, ...] = ()
    dtype: str = ""


@dataclass(frozen=True, kw_only=True)
class Reuse(CodeEvent):
    """The memory of ``reads`` becomes the buffer in ``writes``; ``freed`` if the old name is deleted."""

    kind: ClassVar[str] = "reuse"
    freed: bool = True


@dataclass(frozen=True, kw_only=True)
class Alias(CodeEvent):
    """The name in ``writes`` refers to the values of ``reads``: a view, an element, an argument list."""

    kind: ClassVar[str] = "alias"


@dataclass(frozen=True, kw_only=True)
class Free(CodeEvent):
    """The names in ``reads`` are deleted."""

    kind: ClassVar[str] = "free"


@dataclass(frozen=True, kw_only=True)
class KernelLaunch(CodeEvent):
    """A launch of generated C++ or Triton code.

    Attributes:
        kernel: its name in the wrapper.
        ops_of: for each buffer written, the operators that made it, if Inductor recorded them.
        loop: the number of this loop in a C++ function, from 1; each is a separate event, on the same line.
        loops: how many loops the function has, if Inductor recorded them.
        comment: Inductor's comment on the origin of the launch.
    """

    kind: ClassVar[str] = "kernel"
    kernel: str = ""
    ops_of: tuple[tuple[str, tuple[Op, ...]], ...] = ()
    loop: int = 1
    loops: int = 1
    comment: Comment | None = None


@dataclass(frozen=True, kw_only=True)
class ExternCall(CodeEvent):
    """A call of an operator without generated code; ``function`` as the wrapper calls it."""

    kind: ClassVar[str] = "extern"
    function: str = ""
    comment: Comment | None = None


@dataclass(frozen=True, kw_only=True)
class CollectiveStart(ExternCall):
    """The start of a collective."""

    kind: ClassVar[str] = "collective"


@dataclass(frozen=True, kw_only=True)
class Wait(ExternCall):
    """The wait for a collective."""

    kind: ClassVar[str] = "wait"


@dataclass(frozen=True, kw_only=True)
class StreamSync(ExternCall):
    """Synchronization of GPU streams: an event is recorded or waited for, or all work is.

    Attributes:
        action: the operator of namespace ``streams``, such as ``"record_event"``.
        arguments: numbers of the event and streams.
    """

    kind: ClassVar[str] = "sync"
    action: str = ""
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Copy(ExternCall):
    """A call that only copies, such as ``copy_`` and ``clone``."""

    kind: ClassVar[str] = "copy"


@dataclass(frozen=True, kw_only=True)
class Assert(CodeEvent):
    """A check of sizes, strides, alignment, or of the program's own assertion."""

    kind: ClassVar[str] = "assert"


@dataclass(frozen=True, kw_only=True)
class Return(CodeEvent):
    """The end of a function: it returns ``reads``, and all its other names are deleted."""

    kind: ClassVar[str] = "return"


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
    """What Inductor recorded for one kernel launch.

    Attributes:
        kernel: name of the kernel in the wrapper.
        ops: operators that the kernel computes, without those of extern calls.
        ops_of: the same for each buffer that the kernel makes.
        loops: the buffers of each loop of a C++ function, in order; empty for a kernel in one piece.
        parts: the buffers of each part that was scheduled for this kernel, alone or combined with others.
    """

    kernel: str
    ops: tuple[Op, ...]
    ops_of: tuple[tuple[str, tuple[Op, ...]], ...] = field(default=())
    loops: tuple[tuple[str, ...], ...] = ()
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
SYNCHRONIZATIONS = "streams."


def is_ordered(events: Sequence[CodeEvent], first: int, second: int) -> bool:
    """Say whether the launch at ``first`` has ended on the GPU when the later one at ``second`` starts."""
    known = {event.stream for event in events}
    #: The streams on which all following work runs after the launch, and the events that are recorded after it.
    behind, marks = {events[first].stream}, set[str]()
    for sync in events[first + 1 : second]:
        if not isinstance(sync, StreamSync):
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
