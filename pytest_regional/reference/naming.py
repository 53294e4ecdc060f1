"""Nodes in words, for messages: ops by name, and the user's line that made them."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterable, Sequence

import torch
import torch.fx

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in .*\n?[ \t]*(.*)')
_TORCH = os.path.dirname(torch.__file__) + os.sep
_SHOWN_OPS = 8


def op_names(nodes: Iterable[torch.fx.Node]) -> tuple[str, ...]:
    """Return the names of the ops among ``nodes``, in order; the picking of tuple elements is none."""
    return tuple(_op_name(node) for node in nodes if _is_op(node))


def _is_op(node: torch.fx.Node) -> bool:
    return node.op not in ("placeholder", "get_attr", "output") and node.target is not operator.getitem


def _op_name(node: torch.fx.Node) -> str:
    text = str(node.target)
    return str(getattr(node.target, "__name__", text)) if text.startswith("<") else text


def shortened(names: Sequence[str]) -> str:
    """Join distinct ``names``, and count those that would make the line too long."""
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - _SHOWN_OPS
    return ", ".join(distinct[:_SHOWN_OPS]) + (f" and {more} more" if more > 0 else "")


def source_line(nodes: Iterable[torch.fx.Node]) -> str | None:
    """Return ``file:line: code`` of the first node whose trace kept it; lines of PyTorch's own are a last resort."""
    frames = next((found for node in nodes if (found := _FRAME.findall(node.stack_trace or ""))), None)
    if frames is None:
        return None
    path, line, code = next((frame for frame in reversed(frames) if not frame[0].startswith(_TORCH)), frames[-1])
    return f"{path}:{line}: {code}"
