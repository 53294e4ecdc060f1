"""Marks on the ops of a region that are ordered, and of the bodies that it carries; the order between marks."""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch.fx

from pytest_regional.reference.effects import Edge
from pytest_regional.reference.ordering.operator import is_control_deps
from pytest_regional.reference.ordering.remove import remove_control_deps

MARK = "pytest_regional_order"


@dataclass(frozen=True)
class MarkedOrder:
    """Which mark comes before which; ``identity`` tells two orders, and two graphs, apart in caches."""

    edges: tuple[tuple[int, int], ...] = ()
    identity: str = ""

    @classmethod
    def of(cls, module: torch.fx.GraphModule, edges: tuple[Edge, ...]) -> MarkedOrder:
        """Mark the ops on ``edges``, and those ordered in bodies, of which ``module`` gets plain copies."""
        found = (*edges, *_order_of_bodies(module))
        if not found:
            return cls()
        marks = {node: number for number, node in enumerate(dict.fromkeys(itertools.chain(*found)))}
        identity = _digest(module, marks, found)
        for node, number in marks.items():
            node.meta["custom"] = {**node.meta.get("custom", {}), MARK: number}
        return cls(tuple((marks[a], marks[b]) for a, b in found), identity)


def mark_of(node: torch.fx.Node) -> int | None:
    """Return the mark that ``node`` bears or inherited."""
    custom = node.meta.get("custom")
    return custom.get(MARK) if isinstance(custom, dict) else None


def _bodies(module: torch.fx.GraphModule) -> Iterator[tuple[str, torch.fx.GraphModule]]:
    """Yield the graphs that ``module`` refers to; regions hold theirs as plain attributes."""
    for path in dict.fromkeys(str(node.target) for node in module.graph.find_nodes(op="get_attr")):
        body = getattr(module, path, None)
        if isinstance(body, torch.fx.GraphModule):
            yield path, body


def _order_of_bodies(module: torch.fx.GraphModule) -> tuple[Edge, ...]:
    found: tuple[Edge, ...] = ()
    for path, body in _bodies(module):
        if _holds_order(body):
            duplicate = copy.deepcopy(body)
            setattr(module, path, duplicate)
            found += remove_control_deps(duplicate.graph, bodies=False) + _order_of_bodies(duplicate)
            duplicate.recompile()
    return found


def _holds_order(body: torch.fx.GraphModule) -> bool:
    return any(map(is_control_deps, body.graph.nodes)) or any(_holds_order(inner) for _, inner in _bodies(body))


def _digest(module: torch.fx.GraphModule, marks: dict[torch.fx.Node, int], edges: tuple[Edge, ...]) -> str:
    """Name graph and order: alike in two processes, whatever the nodes are called."""
    numbered = [(marks[a], marks[b]) for a, b in edges]
    return hashlib.sha256("\n".join((*_lines(module, marks), repr(numbered))).encode()).hexdigest()


def _lines(module: torch.fx.GraphModule, marks: dict[torch.fx.Node, int]) -> Iterator[str]:
    numbers = {node: f"%{number}" for number, node in enumerate(module.graph.nodes)}
    for node in module.graph.nodes:
        arguments = torch.fx.node.map_arg((node.args, node.kwargs), numbers.__getitem__)
        yield f"{node.op} {node.target if node.op == 'call_function' else ''} {arguments} {marks.get(node)}"
    for _, body in _bodies(module):
        yield from _lines(body, marks)
