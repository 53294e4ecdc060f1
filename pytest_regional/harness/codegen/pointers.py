"""Which parameters of a Triton function are loaded from and stored to, where its signature does not say."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pytest_regional.harness.codegen.names import dotted

_LOADS = frozenset({"load", "descriptor_load"})
_STORES = frozenset({"store", "descriptor_store"})

Functions = Mapping[str, ast.FunctionDef]


@dataclass
class Accesses:
    """Names of the parameters behind the pointers that a function loads from and stores to."""

    loaded: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)


def accesses_of(function: ast.FunctionDef, functions: Functions, around: tuple[str, ...] = ()) -> Accesses:
    """Return what ``function`` does with the memory behind its parameters, in functions that it calls, too.

    Args:
        function: a ``@triton.jit`` function.
        functions: those of its module, by name.
        around: the functions that called it.
    """
    behind = _pointers(function)
    found = Accesses()
    for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        name = dotted(call.func) or ""
        if name in functions and name not in (*around, function.name):
            inner = accesses_of(functions[name], functions, (*around, function.name))
            for parameter, argument in _bound(functions[name], call):
                found.loaded |= _behind(argument, behind) if parameter in inner.loaded else set()
                found.stored |= _behind(argument, behind) if parameter in inner.stored else set()
            continue
        method = name.rpartition(".")[2]
        touched = _behind(_pointer_of(call, name), behind)
        found.loaded |= touched if method in _LOADS or method.startswith("atomic_") else set()
        found.stored |= touched if method in _STORES or method.startswith("atomic_") else set()
    return found


def _pointers(function: ast.FunctionDef) -> dict[str, set[str]]:
    """Return, for each variable, the parameters that its value may point into."""
    behind = {argument.arg: {argument.arg} for argument in function.args.args}
    assignments = [node for node in ast.walk(function) if isinstance(node, (ast.Assign, ast.AugAssign))]
    changed = True
    while changed:
        changed = False
        for assignment in assignments:
            found = _behind(assignment.value, behind)
            targets = assignment.targets if isinstance(assignment, ast.Assign) else [assignment.target]
            for target in (target for target in targets if isinstance(target, ast.Name)):
                known = behind.setdefault(target.id, set())
                changed |= not found <= known
                known |= found
    return behind


def _pointer_of(call: ast.Call, name: str) -> ast.expr:
    """Return the pointer of ``tl.load(pointer)``, ``tl.load(pointer=...)`` or ``descriptor.load(...)``."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if isinstance(call.func, ast.Attribute) and not name.startswith(("tl.", "tl_", "triton.", "triton_helpers.")):
        return call.func.value
    return call.args[0] if call.args else given.get("pointer", call.func)


def _behind(node: ast.expr, behind: Mapping[str, set[str]]) -> set[str]:
    """Return the parameters that the value of ``node`` may point into: what is loaded is no pointer."""
    found: set[str] = set()
    pending: list[ast.AST] = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, ast.Name):
            found |= behind.get(part.id, set())
        elif not (isinstance(part, ast.Call) and (dotted(part.func) or "").rpartition(".")[2] in _LOADS):
            pending += list(ast.iter_child_nodes(part))
    return found


def _bound(function: ast.FunctionDef, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    names = [argument.arg for argument in function.args.args]
    yield from zip(names, call.args, strict=False)
    yield from ((keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg)
