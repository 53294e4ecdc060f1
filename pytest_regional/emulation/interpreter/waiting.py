"""Which kernels have programs that wait for each other, read from their text.

Waiting is a ``while`` loop around an atomic operation or a volatile load, in the kernel or in a jitted function that it
calls: a barrier across the grid, a scan that looks back, a lock. Such programs take turns; all others run in order.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from pytest_regional._torch.triton_language import jit_source
from pytest_regional.emulation.interpreter.functions import is_jitted

_ANSWERS: WeakKeyDictionary[Any, tuple[str, bool]] = WeakKeyDictionary()


def may_wait(function: Any) -> bool:
    """Say whether programs of the jitted ``function`` may wait for other programs."""
    source = jit_source(function)
    known = _ANSWERS.get(function.fn)
    if known is None or known[0] != source:
        known = _ANSWERS[function.fn] = (source, any(_waits(reached) for reached in _reached(function, {})))
    return known[1]


def _waits(function: Any) -> bool:
    if "while" not in jit_source(function):
        return False
    loops = (node for node in ast.walk(_tree(function)) if isinstance(node, ast.While))
    return any(_touches_memory(function, loop) for loop in loops)


def _touches_memory(function: Any, tree: ast.AST) -> bool:
    """Say whether ``tree``, a part of ``function``, has an atomic operation or a volatile load, or calls what has."""
    if any(_is_atomic(node) for node in ast.walk(tree)):
        return True
    seen: dict[int, Any] = {}
    reached = [inner for called in _called(function, tree) for inner in _reached(called, seen)]
    return any(_is_atomic(node) for inner in reached for node in ast.walk(_tree(inner)))


def _is_atomic(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword):
        return node.arg == "volatile"
    return isinstance(node, (ast.Attribute, ast.Name)) and _last_name(node).startswith("atomic_")


def _last_name(node: ast.Attribute | ast.Name) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id


def _reached(function: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """Yield a jitted function and those that it calls, each once."""
    if id(function.fn) in seen:
        return
    seen[id(function.fn)] = function
    yield function
    for called in _called(function, _tree(function)):
        yield from _reached(called, seen)


def _called(function: Any, tree: ast.AST) -> Iterator[Any]:
    """Yield the jitted functions that a part of ``function`` names."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)) and is_jitted(found := _global(function, node)):
            yield found


def _global(function: Any, node: ast.expr) -> Any:
    """Return what a dotted name in a kernel stands for in its module, or None."""
    if isinstance(node, ast.Name):
        return function.fn.__globals__.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _global(function, node.value)
        return None if owner is None else getattr(owner, node.attr, None)
    return None


def _tree(function: Any) -> ast.AST:
    return _parsed(jit_source(function))


@functools.lru_cache(maxsize=256)
def _parsed(source: str) -> ast.AST:
    """Parse a function once: kernels share most of those they call."""
    return ast.parse(source)
