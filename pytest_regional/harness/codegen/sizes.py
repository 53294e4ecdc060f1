"""Sizes in bytes from what an allocation says."""

from __future__ import annotations

import ast
import math
import operator as arithmetic
from collections.abc import Callable, Mapping

from pytest_regional.harness.codegen.events import Allocate

Sizes = Mapping[str, int]
"""What a test says about symbols (their value) and buffers (their bytes)."""

_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: arithmetic.add,
    ast.Sub: arithmetic.sub,
    ast.Mult: arithmetic.mul,
    ast.FloorDiv: arithmetic.floordiv,
    ast.Mod: arithmetic.mod,
    ast.Pow: pow,
}


def bytes_of(event: Allocate, hints: Sizes) -> int:
    """Return the bytes of the storage behind an allocation."""
    size = [_value(item, hints) for item in event.size]
    stride = [_value(item, hints) for item in event.stride]
    if math.prod(size) == 0:
        return 0
    spanned = 1 + sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))
    return spanned * _itemsize(event.dtype)


def _itemsize(dtype: str) -> int:
    import torch

    found = getattr(torch, dtype.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise KeyError(dtype or "its dtype")
    return int(found.itemsize)


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
