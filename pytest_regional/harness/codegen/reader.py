"""From a wrapper's text to its events, in the order in which ``call`` executes them."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from pytest_regional._torch.inductor import RawLaunch
from pytest_regional._torch.operators import is_op_overload
from pytest_regional.harness.codegen.events import (
    DEFAULT,
    STREAM_GETTERS,
    Allocate,
    CodeEvent,
    Comment,
    Events,
    ExternCall,
    KernelLaunch,
    LaunchOrigin,
    NestingLevel,
    Op,
    UnreadableCodeError,
    comments_between,
    origin_comments,
)
from pytest_regional.harness.codegen.kernels import (
    COPIES,
    KernelDefinition,
    Wrapper,
    dotted,
    elements_of,
    is_collective,
    mentioned,
    mutated_positions,
    operator_called,
    packet_name,
    reduction_finished,
    spelled,
)

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
    called = operator_called(launch.kernel)
    (_, nodes), packet = launch.buffers[0], packet_name(called) if called else None
    return {node for node in nodes if packet_name(str(node.target)) == packet}


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
    whole = packet_name(str(original)) if original is not None else None
    return Op(target, whole if whole not in (None, packet_name(target)) else None)


@lru_cache(maxsize=256)
def events_of(text: str, origins: Origins | None) -> Events:
    """Return the events of wrapper ``text``, with the operators of each launch if known."""
    events = list(_FunctionReader(Wrapper.of(text), "call", ()).block())
    return Events(_with_origins(events, origins) if origins is not None else _guarded(events))


def _with_origins(events: list[CodeEvent], origins: Origins) -> list[CodeEvent]:
    """Give each launch the operators of the origin that makes one of its buffers, or of its kernel's next origin."""
    waiting: dict[str, deque[LaunchOrigin]] = {}
    kernels: dict[tuple[tuple[str, ...], ...], set[str]] = {}
    for origin in origins:
        waiting.setdefault(origin.kernel, deque()).append(origin)
        kernels.setdefault(origin.parts, set()).add(origin.kernel)
    # The parts shared by several kernels: combined kernels, each of which computes some of the parts.
    shared = frozenset(parts for parts, names in kernels.items() if len(names) > 1 and len(parts) > 1)
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
        (event.comment.nodes[-1], packet_name(op.name))
        for event in events
        if isinstance(event, ExternCall) and event.comment and event.comment.nodes
        for op in event.ops or ()
    }
    guarded: list[CodeEvent] = []
    for event in events:
        if isinstance(event, KernelLaunch) and event.ops and event.comment:
            elsewhere = {packet for node, packet in called if node in event.comment.nodes}
            left = tuple(op for op in event.ops if packet_name(op.name) not in elsewhere)
            guarded.append(dataclasses.replace(event, ops=left))
        else:
            guarded.append(event)
    return guarded


# Calls that affect neither the contents of a buffer nor its lifetime.
BOOKKEEPING = frozenset([
    "get_raw_stream", "current_stream", "clear", "size", "stride", "numel", "storage_offset", "set_device",
    "synchronize", "wait", "max",
])  # fmt: skip


class _FunctionReader:
    """Reads one function of a wrapper, and its calls of other functions in place."""

    def __init__(
        self,
        wrapper: Wrapper,
        name: str,
        path: tuple[NestingLevel, ...],
        argument: str | None = None,
        stream: str = DEFAULT,
    ) -> None:
        if len(path) > 40:
            raise UnreadableCodeError(f"the function {name} of the generated code calls itself")
        self.wrapper, self.function = wrapper, wrapper.functions[name]
        self.argument = argument
        self.path = path
        self.stream, self.streams = stream, {"default_stream": DEFAULT}
        self.comments = comments_between(wrapper.lines, self.function.lineno, self.function.end_lineno or 0)
        self.pending: list[Comment] = list(reversed(origin_comments(self.comments)))
        self.returned: tuple[str, ...] = ()

    # Statements

    def block(self, block: list[ast.stmt] | None = None) -> Iterator[CodeEvent]:
        """Yield the events of some statements, by default of the whole function."""
        statements = self.function.body if block is None else block
        taken: ast.stmt | None = None
        for statement, following in zip(statements, [*statements[1:], None], strict=False):
            if statement is taken:
                continue
            reuses = self.comments.get(statement.lineno, "") in ("reuse", "alloc")
            if reuses and isinstance(statement, ast.Assign) and not operator_called(self._path(statement.value) or ""):
                freed = isinstance(following, ast.Delete) and following.lineno == statement.lineno
                taken = following if freed else None
                old, new = mentioned(statement.value), elements_of(statement.targets[0])
                yield self._event(CodeEvent, statement, kind="reuse", reads=old, writes=new, freed=freed)
            else:
                yield from self._statement(statement)

    def _statement(self, statement: ast.stmt) -> Iterator[CodeEvent]:
        match statement:
            case ast.Assign():
                yield from self._assign(statement)
            case ast.Expr(value=ast.Call() as call):
                yield from self._call(statement, call, ())
            case ast.Delete(targets=targets):
                yield self._event(CodeEvent, statement, kind="free", reads=tuple(map(spelled, targets)))
            case ast.Return(value=value):
                elements = value.elts if isinstance(value, ast.Tuple) else []
                self.returned = tuple((*mentioned(element), "")[0] for element in elements)
                yield self._event(CodeEvent, statement, kind="return", reads=tuple(filter(None, self.returned)))
            case ast.With():
                yield from self._with(statement)
            case ast.If(test=test, orelse=[]) if all(isinstance(inner, ast.Raise) for inner in statement.body):
                yield self._event(CodeEvent, statement, kind="assert", reads=mentioned(test))
            case ast.If(test=test):
                for number, block in enumerate((statement.body, statement.orelse)):
                    yield from self._nested("if", statement, test, block, number)
            case ast.While(test=head) | ast.For(iter=head):
                yield from self._nested("while", statement, head, statement.body, 0)
            case ast.Assert(test=test):
                yield self._event(CodeEvent, statement, kind="assert", reads=mentioned(test))
            case ast.Expr() | ast.Pass() | ast.Import() | ast.ImportFrom() | ast.Global():
                pass
            case _:
                yield self._event(CodeEvent, statement, reads=mentioned(statement))

    def _event(self, cls: type[CodeEvent], node: ast.stmt, **fields: Any) -> CodeEvent:
        text = self.wrapper.lines[node.lineno - 1].strip()
        return cls(line=node.lineno, text=text, path=self.path, stream=self.stream, **fields)

    def _alias(self, node: ast.stmt, reads: tuple[str, ...], writes: tuple[str, ...]) -> CodeEvent:
        return self._event(CodeEvent, node, kind="alias", reads=reads, writes=writes)

    def _with(self, statement: ast.With) -> Iterator[CodeEvent]:
        outer = self.stream
        entered = [dotted(item.context_expr) or "" for item in statement.items]
        self.stream = next((self.streams[name] for name in entered if name in self.streams), outer)
        yield from self.block(statement.body)
        self.stream = outer

    def _nested(
        self, kind: str, statement: ast.stmt, head: ast.expr, block: list[ast.stmt], arm: int
    ) -> Iterator[CodeEvent]:
        outer = self.path
        self.path = (*outer, NestingLevel(kind, statement.lineno, ast.unparse(head), arm))
        yield from self.block(block)
        self.path = outer

    def _assign(self, statement: ast.Assign) -> Iterator[CodeEvent]:
        value, target = statement.value, statement.targets[0]
        if isinstance(value, ast.Name) and value.id == "args":
            yield from self._parameters(statement)
        elif isinstance(value, (ast.List, ast.Tuple)):
            yield from self._elements(statement, value)
        elif isinstance(value, ast.Call):
            yield from self._call(statement, value, elements_of(target))
        elif isinstance(value, (ast.Name, ast.Subscript)):
            yield self._alias(statement, (spelled(value),), (spelled(target),))

    def _parameters(self, statement: ast.Assign) -> Iterator[CodeEvent]:
        """Bind the parameters of a function whose call is being read."""
        bound = elements_of(statement.targets[0])
        for number, name in enumerate(bound if self.argument else ()):
            yield self._alias(statement, (f"{self.argument}[{number}]",), (name,))
        if self.argument:
            # args.clear() follows: the list is empty from then on.
            yield self._alias(statement, (), (self.argument,))

    def _elements(self, statement: ast.Assign, value: ast.List | ast.Tuple) -> Iterator[CodeEvent]:
        target = spelled(statement.targets[0])
        for number, element in enumerate(value.elts):
            reads = mentioned(element) if not isinstance(element, ast.Subscript) else (spelled(element),)
            if reads:
                yield self._alias(statement, reads[:1], (f"{target}[{number}]",))

    # Calls

    def _path(self, node: ast.expr) -> str | None:
        path = dotted(node.func) if isinstance(node, ast.Call) else None
        if not path:
            return None
        head, dot, rest = path.partition(".")
        return self.wrapper.aliases.get(head, head) + dot + rest

    def _call(self, statement: ast.stmt, call: ast.Call, targets: tuple[str, ...]) -> Iterator[CodeEvent]:
        inner = self._function_called(call)
        path = self._path(call) or ""
        last = path.rpartition(".")[2]
        if inner:
            yield from self._inline(statement, call, inner, targets)
        elif last in STREAM_GETTERS:
            self.streams.update(dict.fromkeys(targets, ast.unparse(call.args[0])))
        elif "empty_strided" in last:
            yield self._allocation(statement, call, targets)
        elif last.startswith("assert_") or "check_inf_and_nan" in last:
            yield self._event(CodeEvent, statement, kind="assert", reads=mentioned(*call.args[:1]))
        elif self._kernel_called(call):
            yield self._launch(statement, call, self.wrapper.kernels[self._kernel_called(call)], targets)
        elif "reinterpret_tensor" in last or last in ("_alloc_from_pool", "copy_if_misaligned"):
            yield self._alias(statement, mentioned(*call.args[:1]), targets)
        elif operator_called(path):
            yield self._extern(statement, call, operator_called(path) or "", targets)
        elif finished := reduction_finished(call):
            fields = {"reads": mentioned(call.func), "writes": targets, "function": finished}
            yield self._event(ExternCall, statement, ops=(Op(f"aten.{finished}"),), **fields)
        elif isinstance(call.func, ast.Attribute) and (last.endswith("_") or last == "clone"):
            yield self._method(statement, call, last, targets)
        elif last not in BOOKKEEPING:
            yield self._event(CodeEvent, statement, reads=mentioned(call), writes=targets)

    def _function_called(self, call: ast.Call) -> str | None:
        """Return the called function of the wrapper: a subgraph, or ``self.partitions[0]``."""
        if isinstance(call.func, ast.Subscript) and dotted(call.func.value) == "self.partitions":
            return f"partition_{ast.unparse(call.func.slice)}"
        name = dotted(call.func)
        return name if name in self.wrapper.functions and name != "call" else None

    def _inline(self, statement: ast.stmt, call: ast.Call, name: str, targets: tuple[str, ...]) -> Iterator[CodeEvent]:
        step = NestingLevel("call", statement.lineno, name)
        argument = next(iter(mentioned(*call.args)), None)
        if name not in self.wrapper.functions:
            raise UnreadableCodeError(f"line {statement.lineno} calls {name}, which the generated code does not define")
        inner = _FunctionReader(self.wrapper, name, (*self.path, step), argument, self.stream)
        yield from inner.block()
        whole = isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
        for number, returned in enumerate(inner.returned):
            target = f"{targets[0]}[{number}]" if whole else (*targets, *inner.returned)[number]
            if returned:
                yield self._alias(statement, (returned,), (target,))

    def _allocation(self, statement: ast.stmt, call: ast.Call, targets: tuple[str, ...]) -> CodeEvent:
        given = [argument.elts if isinstance(argument, ast.Tuple | ast.List) else () for argument in call.args[:2]]
        lists = [tuple(map(ast.unparse, elements)) for elements in given]
        dtypes = [a for a in (dotted(n) for n in [*call.args[2:], *(k.value for k in call.keywords)]) if a]
        size, stride = (*lists, (), ())[:2]
        dtype = next((name for name in dtypes if name.startswith("torch.")), "")
        return self._event(Allocate, statement, writes=targets, size=size, stride=stride, dtype=dtype)

    def _kernel_called(self, call: ast.Call) -> str:
        path = dotted(call.func) or ""
        head, _, method = path.partition(".")
        return head if head in self.wrapper.kernels and method in ("", "run") else ""

    def _launch(
        self, statement: ast.stmt, call: ast.Call, kernel: KernelDefinition, targets: tuple[str, ...]
    ) -> CodeEvent:
        comment = self._comment(statement)
        passed = [(next(iter(mentioned(a)), ""), p) for a, p in zip(call.args, kernel.parameters, strict=False)]
        reads = tuple(dict.fromkeys(name for name, parameter in passed if name and parameter.reads))
        writes = dict.fromkeys(name for name, parameter in passed if name and parameter.writes)
        fields = {"reads": reads, "writes": (*writes, *targets), "kernel": kernel.name}
        if kernel.language == "triton" and not kernel.function.startswith("triton_"):  # the user wrote it
            return self._event(KernelLaunch, statement, ops=(Op(f"triton.{kernel.function}"),), **fields)
        known = comment and comment.sorted and comment.operators
        ops = tuple(map(Op, comment.operators)) if comment and known else None
        return self._event(KernelLaunch, statement, ops=ops, comment=comment, **fields)

    def _extern(self, statement: ast.stmt, call: ast.Call, operator: str, targets: tuple[str, ...]) -> CodeEvent:
        comment = self._comment(statement)
        out = mentioned(*(keyword.value for keyword in call.keywords if keyword.arg == "out"))
        inputs = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg != "out")]
        kind = _extern_kind(operator)
        positions = (0,) if kind == "wait" else mutated_positions(operator)
        mutated = [call.args[i] for i in positions if i < len(call.args)]
        is_sync = kind == "sync"
        return self._event(
            ExternCall,
            statement,
            kind=kind,
            reads=mentioned(*inputs),
            writes=tuple(dict.fromkeys((*targets, *out, *mentioned(*mutated)))),
            ops=_ops_of(operator),
            function=dotted(call.func) or operator,
            comment=comment,
            action=operator.split(".")[1] if is_sync else "",
            arguments=tuple(map(ast.unparse, call.args)) if is_sync else (),
        )

    def _method(self, statement: ast.stmt, call: ast.Call, method: str, targets: tuple[str, ...]) -> CodeEvent:
        changed = mentioned(call.func)
        return self._event(
            ExternCall,
            statement,
            kind="copy" if method in ("copy_", "clone") else "extern",
            reads=mentioned(*call.args) or changed,
            writes=targets or changed,
            ops=(Op(f"aten.{method}"),),
            function=method,
        )

    def _comment(self, statement: ast.stmt) -> Comment | None:
        """Return the last comment on origins between the previous launch and ``statement``."""
        found = None
        while self.pending and self.pending[-1].line < statement.lineno:
            found = self.pending.pop()
        return found


def _extern_kind(operator: str) -> str:
    if operator.startswith("streams."):
        return "sync"
    if is_collective(operator):
        return "wait" if operator.split(".")[1] == "wait_tensor" else "collective"
    return "copy" if packet_name(operator) in COPIES else "extern"


def _ops_of(operator: str) -> tuple[Op, ...]:
    """Return the operator, and the functional one that Inductor turned into this in-place collective."""
    namespace, packet, *overload = operator.split(".")
    if is_collective(operator) and packet.endswith("_"):
        return Op(operator), Op(".".join([namespace, packet.rstrip("_"), *overload]))
    return (Op(operator),)
