"""Operators in generated code: the names in a wrapper, and the events that match a pattern."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from pytest_regional._torch.operators import schema_of
from pytest_regional.harness.codegen.events import CodeEvent, CodeLookupError, ExternCall, KernelLaunch, Op, rows
from pytest_regional.harness.ops import OpError, OpPattern, operator_spellings

# Inductor's names for library routines that are not operators of that name.
EXTERN_KERNELS = {
    "bias_addmm": "aten.addmm.default",
    "mm_dtype": "aten.mm.dtype",
    "bmm_dtype": "aten.bmm.dtype",
    "conv1x1_via_mm": "aten.convolution.default",
    "call_aten_dw": "aten.convolution_backward.default",
    "call_aten_dx": "aten.convolution_backward.default",
    "_mm_plus_mm": "inductor._mm_plus_mm.default",
}
# Names before a dot in a wrapper that are not buffers.
MODULES = frozenset(
    ["torch", "aten", "extern_kernels", "inductor_ops", "_quantized", "async_compile", "math", "self", "device", "inf"]
)
REDUCTIONS = frozenset(["sum", "prod", "amax", "amin", "any"])
COLLECTIVES = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor")


def dotted(node: ast.expr) -> str | None:
    """Return ``"a.b.c"`` for an attribute chain on a name, None for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def module_aliases(module: ast.Module) -> dict[str, str]:
    """Return the meaning of the module's short names, such as ``torch.ops.aten`` for ``aten``."""
    aliases: dict[str, str] = {}
    for statement in module.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            path = dotted(statement.value)
            if path and "." in path:
                aliases[statement.targets[0].id] = path
    return aliases


def resolved(path: str, aliases: dict[str, str]) -> str:
    """Return ``path`` with its first name expanded."""
    head, dot, rest = path.partition(".")
    return aliases.get(head, head) + dot + rest


def operator_called(path: str) -> str | None:
    """Return the operator that the resolved call ``path`` runs, such as ``"aten.mm.default"``, or None."""
    if path.startswith("torch.ops."):
        return path.removeprefix("torch.ops.")
    if path.startswith("extern_kernels."):
        name = path.removeprefix("extern_kernels.")
        return EXTERN_KERNELS.get(name, f"aten.{name}.default")
    return None


def reduction_finished(call: ast.Call) -> str | None:
    """Return ``"sum"`` for ``workspace[0:64].view(8, 8).sum(dim=0)``, else None.

    This is how Inductor sums the partial results in the workspace of a kernel that reduces both dimensions.
    """
    node: ast.expr = call
    methods = []
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        methods.append(node.func.attr)
        node = node.func.value
    found = [method for method in methods if method in REDUCTIONS]
    return found[0] if found and isinstance(node, ast.Subscript) else None


def is_collective(operator: str) -> bool:
    """Say whether ``operator`` belongs to a namespace of collectives."""
    return operator.partition(".")[0] in COLLECTIVES


def is_wait(operator: str) -> bool:
    """Say whether ``operator`` waits for a collective."""
    return is_collective(operator) and operator.split(".")[1] == "wait_tensor"


def mentioned(*nodes: ast.AST) -> tuple[str, ...]:
    """Return the variables that ``nodes`` mention, once each, in order; names of functions and modules are left out."""
    found: dict[str, None] = {}
    pending = list(reversed(nodes))
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Name) and node.id not in MODULES:
            found[node.id] = None
        pending += reversed(_parts(node))
    return tuple(found)


def _parts(node: ast.AST) -> list[ast.AST]:
    """Return the children of ``node`` without the name of a called function; the frequent kinds go first."""
    if isinstance(node, (ast.Constant, ast.Name)):
        return []
    if isinstance(node, (ast.Tuple, ast.List)):
        return [*node.elts]
    if isinstance(node, ast.Attribute):
        return [node.value]
    if isinstance(node, ast.Call):
        function = [] if isinstance(node.func, ast.Name) else [node.func]
        return [*function, *node.args, *(keyword.value for keyword in node.keywords)]
    return list(ast.iter_child_nodes(node))


def targets_of(node: ast.Assign) -> tuple[str, ...]:
    """Return the variables that an assignment binds; ``buf1[0] = x`` binds ``buf1``."""
    found = [part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)]
    return tuple(dict.fromkeys(found))


def spelled(node: ast.expr) -> str:
    """Return ``buf0`` or ``buf0[1]`` for a variable or an element of one, else the variable in it."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return f"{spelled(node.value)}[{node.slice.value!r}]"
    return node.id if isinstance(node, ast.Name) else next(iter(mentioned(node)), "")


def elements_of(target: ast.expr) -> tuple[str, ...]:
    """Return the names that an assignment's ``target`` binds, element by element."""
    if isinstance(target, (ast.Tuple, ast.List)):
        return tuple(map(spelled, target.elts))
    return (spelled(target),)


COPIES = frozenset(["aten.copy_", "aten.copy", "aten.clone", "aten.lift_fresh_copy", "aten.contiguous"])


def packet_name(name: str) -> str:
    """Return ``"aten.add"`` for ``"aten.add.Tensor"`` and for ``"aten.add"``."""
    return ".".join(name.split(".")[:2])


@cache
def overload_of(name: str) -> Any:
    """Return the overload called ``name``, or the first one of its packet if ``name`` is a packet, or None."""
    namespace, _, rest = name.partition(".")
    operator, _, overload = rest.partition(".")
    packet: Any = getattr(getattr(torch.ops, namespace), operator, None) if operator.isidentifier() else None
    overloads: list[str] = packet.overloads() if hasattr(packet, "overloads") else []
    chosen = overload or next(iter(overloads), "")
    return getattr(packet, chosen) if chosen in overloads else None


def mutated_positions(name: str) -> tuple[int, ...]:
    """Return the positions of the arguments that the operator writes."""
    overload = overload_of(name)
    arguments = schema_of(overload).arguments if overload else ()
    return tuple(i for i, argument in enumerate(arguments) if argument.alias_info and argument.alias_info.is_write)


def only_moves(name: str) -> bool:
    """Say whether the operator only copies or makes a view."""
    if packet_name(name) in COPIES:
        return True
    overload = overload_of(name)
    return bool(overload and overload.is_view)


def matches(pattern: OpPattern, op: Op) -> bool:
    """Say whether ``pattern`` names ``op``: the program's operator, or with ``>`` a part of its decomposition."""
    if pattern.inside is None:
        return pattern.is_called(operator_spellings(op.inside or op.name))
    held = op.inside is not None and pattern.inside in operator_spellings(op.inside)
    return held and pattern.is_called(operator_spellings(op.name))


def launches_of(events: Iterable[CodeEvent]) -> list[CodeEvent]:
    """Return the events that compute something: launches, extern calls, collectives, waits and copies."""
    return [event for event in events if isinstance(event, (KernelLaunch, ExternCall))]


def require_known(events: Sequence[CodeEvent]) -> None:
    """Raise :class:`CodeLookupError` if the operators of a launch are unknown."""
    unknown = [n for n, event in enumerate(events) if event.ops is None]
    if unknown:
        raise CodeLookupError(
            "the operators of the marked launches are unknown: Inductor writes no comment above C++ kernels, and "
            "this code was loaded from a cache that another process filled, or generated while no harness was active. "
            "Let the test generate it (fresh caches are the default). Kernel names are only hints.\n"
            + "\n".join(rows(events, unknown))
        )


def no_such_op(pattern: OpPattern, events: Sequence[CodeEvent], where: str) -> OpError:
    """Return the error for a pattern that matches none of ``events``: the operators there, and likely reasons."""
    there = list(dict.fromkeys(op.inside or op.name for event in events for op in event.ops or ()))
    near = difflib.get_close_matches(pattern.name, [*there, *map(packet_name, there)], n=1, cutoff=0.7)
    explanations = (
        explain(pattern, events) for explain in (_as_ordinal, _as_part, _as_mention, _as_overload, _as_call)
    )
    guess = next(filter(None, explanations), f"Did you mean {near[0]!r}?" if near else "")
    lines = [f"no launch of {pattern} in {where}.", *filter(None, [guess])]
    lines.append(f"Operators there: {', '.join(there) or 'none'}.")
    lines.append(
        "Passes change operators before code is generated: aten.mm may become aten.addmm, views such as aten.t "
        "disappear, aten.silu is decomposed."
    )
    return OpError(" ".join(lines[:-1]) + "\n" + lines[-1] + "\n" + "\n".join(rows(events)))


def _as_part(pattern: OpPattern, events: Sequence[CodeEvent]) -> str:
    parts = [
        op for event in events for op in event.ops or () if op.inside and pattern.name in operator_spellings(op.name)
    ]
    return (
        f"It is part of {parts[0].inside} there: write '{parts[0].inside}>{packet_name(parts[0].name)}'."
        if parts
        else ""
    )


def _as_mention(pattern: OpPattern, events: Sequence[CodeEvent]) -> str:
    for event in events:
        comment = event.comment if isinstance(event, (KernelLaunch, ExternCall)) else None
        named = comment.operators if comment and event.ops else ()
        if any(pattern.name in operator_spellings(name) for name in named if "." in name):
            return f"The comment of {(event.ops or ())[0]} (line {event.line}) names it as an input or a replaced one."
    return ""


def _as_ordinal(pattern: OpPattern, events: Sequence[CodeEvent]) -> str:
    every = replace(pattern, ordinal=None)
    count = sum(any(matches(every, op) for op in event.ops or ()) for event in events)
    return f"There are {count} of {every}." if pattern.ordinal and count else ""


def _as_overload(pattern: OpPattern, events: Sequence[CodeEvent]) -> str:
    there = (op.name for event in events for op in event.ops or ())
    packets = [name for name in there if name.count(".") == 1 and pattern.name.startswith(f"{name}.")]
    return f"Only the name {packets[0]!r} is known, not its overload: leave the overload out." if packets else ""


def _as_call(pattern: OpPattern, events: Sequence[CodeEvent]) -> str:
    elsewhere = pattern.is_known and not pattern.is_operator
    return f"Generated code calls operators of torch.ops, and {pattern} is not one." if elsewhere else ""
