"""Graphs for people: one line a node, before and after side by side as a diff, what matters marked."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import Any

import torch.fx

from pytest_regional._torch.fx_graphs import bodies_of
from pytest_regional.harness.ops import function_names

CONTEXT = 8

Line = tuple[str, torch.fx.Node | None]


def graph_lines(module: torch.fx.GraphModule) -> list[Line]:
    """Return the lines of ``module``'s graph, each with its node; bodies stand indented below their first caller."""
    return list(_lines(module, "", set()))


def _lines(module: torch.fx.GraphModule, indent: str, seen: set[int]) -> Iterable[Line]:
    for node in module.graph.nodes:
        bodies = bodies_of(node, module, modules=True) if node.op.startswith("call") else []
        if node.op == "get_attr" and _is_body(node, module):
            continue
        yield indent + _line(node, module), node
        for body in bodies:
            if id(body) not in seen:
                seen.add(id(body))
                yield from _lines(body, indent + "    ", seen)


def _is_body(node: torch.fx.Node, module: torch.fx.GraphModule) -> bool:
    return any(body is getattr(module, str(node.target), None) for body in module.children()) and isinstance(
        getattr(module, str(node.target)), torch.fx.GraphModule
    )


def _line(node: torch.fx.Node, module: torch.fx.GraphModule) -> str:
    if node.op == "placeholder":
        return f"{node.name} = input{_described(node)}"
    if node.op == "output":
        return f"return {_value(node.args[0])}"
    if node.op == "get_attr":
        return f"{node.name} = self.{node.target}"
    arguments = [_value(argument) for argument in node.args] + [f"{k}={_value(v)}" for k, v in node.kwargs.items()]
    return f"{node.name} = {_called(node, module)}({', '.join(arguments)}){_described(node)}"


def _called(node: torch.fx.Node, module: torch.fx.GraphModule) -> str:
    if node.op == "call_method":
        return f".{node.target}"
    if node.op == "call_module":
        return f"self.{node.target}"
    return function_names(node.target)[0]


def _described(node: torch.fx.Node) -> str:
    value = node.meta.get("val", node.meta.get("example_value"))
    if not isinstance(value, torch.Tensor):
        return ""
    return f"  # {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def _value(value: Any) -> str:
    if isinstance(value, torch.fx.Node):
        return str(value.name)
    if isinstance(value, tuple | list):
        inner = ", ".join(map(_value, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(value) == 1)})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_value(v)}" for key, v in value.items()) + "}"
    return function_names(value)[0] if callable(value) else repr(value)


def diff(
    before: torch.fx.GraphModule, after: torch.fx.GraphModule, marked: Collection[torch.fx.Node] = frozenset()
) -> str:
    """Return both graphs as one text: ``-`` stood before, ``+`` stands after, ``>`` marks a node of ``marked``.

    What is far from any change or mark is left out, with a line that says how much.
    """
    rows = _rows(graph_lines(before), graph_lines(after), marked)
    near = {
        index + offset
        for index, (important, _) in enumerate(rows)
        if important
        for offset in range(-CONTEXT, CONTEXT + 1)
    }
    if not near:
        near = set(range(CONTEXT))
    return "\n".join(_shortened([(index in near, text) for index, (_, text) in enumerate(rows)]))


def _rows(old: list[Line], new: list[Line], marked: Collection[torch.fx.Node]) -> list[tuple[bool, str]]:
    matcher = difflib.SequenceMatcher(None, [text for text, _ in old], [text for text, _ in new], autojunk=False)
    rows: list[tuple[bool, str]] = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            pairs = zip(old[i1:i2], new[j1:j2], strict=True)
            rows += [_row(" ", text, first in marked or second in marked) for (text, first), (_, second) in pairs]
        else:
            rows += [_row("-", text, node in marked) for text, node in old[i1:i2]]
            rows += [_row("+", text, node in marked) for text, node in new[j1:j2]]
    return rows


def _row(sign: str, text: str, marked: bool) -> tuple[bool, str]:
    return marked or sign != " ", f"{'>' if marked else ' '} {sign} {text}"


def _shortened(rows: Iterable[tuple[bool, str]]) -> Iterable[str]:
    hidden = 0
    for shown, text in rows:
        if shown and hidden:
            yield f"    ... {hidden} unchanged"
        hidden = 0 if shown else hidden + 1
        if shown:
            yield text
    if hidden:
        yield f"    ... {hidden} unchanged"
