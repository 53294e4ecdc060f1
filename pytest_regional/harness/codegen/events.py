"""What happens in generated code, as plain records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from pytest_regional.harness.codegen.comments import Comment


@dataclass(frozen=True)
class Op:
    """One operator that a kernel computes.

    Attributes:
        name: ``"aten.add.Tensor"``, or ``"aten.add"`` where the overload is not known.
        inside: the operator that was decomposed into this one, such as ``"aten.silu"``, or None.
    """

    name: str
    inside: str | None = None

    def __str__(self) -> str:
        return f"{self.inside}>{self.name}" if self.inside else self.name


@dataclass(frozen=True)
class Step:
    """One level of the nesting in which an event stands.

    Attributes:
        kind: ``"if"``, ``"while"`` or ``"call"`` (of a subgraph's or partition's function).
        line: where the level begins; two calls of one function differ here.
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
        reads: names of buffers and inputs read, as far as known.
        writes: names of buffers and inputs written, as far as known.
        ops: the operators computed; None when unknown.
        path: the branches, loops and functions around it, outermost first.
        stream: number of the user's GPU stream on which it runs; empty for the stream that is current at the call.
    """

    kind: ClassVar[str] = "other"
    line: int
    text: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    ops: tuple[Op, ...] | None = ()
    path: tuple[Step, ...] = ()
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
    """The memory of ``reads`` becomes the buffer in ``writes``; ``freed`` when the old name is gone."""

    kind: ClassVar[str] = "reuse"
    freed: bool = True


@dataclass(frozen=True, kw_only=True)
class Alias(CodeEvent):
    """The name in ``writes`` now holds what the names in ``reads`` hold: a view, an element, an argument list."""

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
        ops_of: for each buffer written, the operators that made it, where Inductor told.
        loop: which of the loops of one C++ function this is, from 1; each is an event of its own, on the same line.
        loops: how many loops the function has, where Inductor told.
        comment: Inductor's comment on where the launch comes from.
    """

    kind: ClassVar[str] = "kernel"
    kernel: str = ""
    ops_of: tuple[tuple[str, tuple[Op, ...]], ...] = ()
    loop: int = 1
    loops: int = 1
    comment: Comment | None = None


@dataclass(frozen=True, kw_only=True)
class ExternCall(CodeEvent):
    """A call of an operator that Inductor did not generate code for; ``function`` as the wrapper calls it."""

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
    """Something between GPU streams: an event is recorded or waited for, or all work is.

    Attributes:
        action: the operator of namespace ``streams``, such as ``"record_event"``.
        arguments: numbers of the event and of streams.
    """

    kind: ClassVar[str] = "sync"
    action: str = ""
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Copy(ExternCall):
    """A call that does nothing but copy, such as ``copy_`` and ``clone``."""

    kind: ClassVar[str] = "copy"


@dataclass(frozen=True, kw_only=True)
class Assert(CodeEvent):
    """A check of sizes, strides, alignment or of an assertion of the program."""

    kind: ClassVar[str] = "assert"


@dataclass(frozen=True, kw_only=True)
class Return(CodeEvent):
    """The end of a function: ``reads`` are given to the caller, all other names of the function go."""

    kind: ClassVar[str] = "return"


class Events(tuple[CodeEvent, ...]):
    """Events in execution order; ``str()`` is a table."""

    __slots__ = ()

    def __str__(self) -> str:
        from pytest_regional.harness.codegen.table import rows

        return "\n".join(rows(self))

    def of_kind(self, kind: str) -> Events:
        """Return the events of ``kind``, such as ``"kernel"``."""
        return Events(event for event in self if event.kind == kind)


@dataclass(frozen=True)
class LaunchOrigin:
    """What Inductor knew when it wrote one kernel launch.

    Attributes:
        kernel: name of the kernel in the wrapper.
        ops: operators that the kernel computes; those of extern calls are left out.
        ops_of: the same for each buffer that the kernel makes.
        loops: the buffers of each loop of a C++ function, in order; empty where there is one kernel in one piece.
        parts: the buffers of each part that was scheduled for this kernel, or for it and others together.
    """

    kernel: str
    ops: tuple[Op, ...]
    ops_of: tuple[tuple[str, tuple[Op, ...]], ...] = field(default=())
    loops: tuple[tuple[str, ...], ...] = ()
    parts: tuple[tuple[str, ...], ...] = ()
