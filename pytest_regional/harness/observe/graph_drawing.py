"""Graphs as a report draws them: nodes with their regions, their partitions, and what they wait for."""

from __future__ import annotations

import contextlib
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_regional.harness.observe import annotated
from pytest_regional.harness.observe.listeners import CompileListener

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

#: A line of a stack trace that PyTorch keeps with a node.
_FRAME = re.compile(r'^\s*File "(.*)", line (\d+), in (.*)$', re.MULTILINE)


@dataclass(frozen=True)
class NodeRecord:
    """One node of a graph that AOTAutograd made.

    Attributes:
        name: its name in the graph.
        op: the operator such as ``aten.mul.Tensor``, or ``input``, ``output``, ``getitem``; of an ordered operator that
            it is, without ``control_deps``.
        region: the name of its region, ``None`` outside all.
        inputs: names of the nodes whose values it takes.
        source: where the program calls it, such as ``model.py:12 in forward``; empty when unknown.
    """

    name: str
    op: str
    region: str | None
    inputs: tuple[str, ...]
    source: str = ""


@dataclass
class DrawnGraph:
    """A graph, and which of its nodes were handed to Inductor together.

    Attributes:
        kind: ``"inference"``, ``"forward"`` or ``"backward"``.
        nodes: in graph order; sub-graphs are not among them.
        partitions: names of the nodes of each subgraph that was handed to Inductor on its own, as named there.
        after: by name of a node, names of those that it waits for though it takes no value of them: by ``control_deps``
            in the graph as AOTAutograd gave it, or in a subgraph handed to Inductor; and the first node of a region for
            the last of one that its annotation names (``region(after=...)``; the other way round in the backward).
    """

    kind: str
    nodes: tuple[NodeRecord, ...]
    partitions: list[frozenset[str]] = field(default_factory=list)
    after: dict[str, list[str]] = field(default_factory=dict)

    def partition_of(self, node: NodeRecord) -> int | None:
        """Return the number of the partition that ``node`` became part of, ``None`` if none or unknown."""
        return next((number for number, names in enumerate(self.partitions) if node.name in names), None)

    def note_order(self, gm: GraphModule) -> None:
        """Add the order edges in ``gm``; nodes that wait keep their names."""
        for node in gm.graph.nodes:
            if _is_ordered(node):
                for one in node.args[0]:
                    self._waits(node, one)

    def note_order_of_regions(self, gm: GraphModule) -> None:
        """Add the edges that annotations ask for."""
        nodes: dict[str, list[Node]] = {}
        wanted: dict[tuple[str, str], None] = {}
        for node in gm.graph.nodes:
            region = annotated.region_of(node)
            if region is not None and node.op == "call_function":
                nodes.setdefault(region[0], []).append(node)
                wanted.update(dict.fromkeys((str(before), region[0]) for before in annotated.regions_before(node)))
        for before, after in wanted:
            first, second = (after, before) if self.kind == "backward" else (before, after)
            if first in nodes and second in nodes:
                self._waits(nodes[second][0], nodes[first][-1])

    def _waits(self, node: Node, before: Node) -> None:
        known = self.after.setdefault(node.name, [])
        if before.name not in known:
            known.append(before.name)


class GraphDrawer(CompileListener):
    """Keeps the last graphs that are compiled while it is among ``Observer.listeners``, and counts them all."""

    def __init__(self, kept: int) -> None:
        self.graphs: deque[DrawnGraph] = deque(maxlen=kept)
        self.count = 0
        self._compiling = threading.local()

    @contextlib.contextmanager
    def compiling_graph(self, kind: str, gm: Any) -> Iterator[Callable[[Any], None]]:
        """Draw a graph before its compiler rewrites it."""
        outer = getattr(self._compiling, "graph", None)
        self._compiling.graph = drawn = DrawnGraph(kind, tuple(_nodes(gm)))
        drawn.note_order(gm)
        drawn.note_order_of_regions(gm)
        self.graphs.append(drawn)
        self.count += 1
        try:
            yield lambda result: None
        finally:
            self._compiling.graph = outer

    @contextlib.contextmanager
    def compiling_region(self, gm: Any, inputs: Sequence[Any]) -> Iterator[Callable[[Any], None]]:
        """Note which nodes became a partition."""
        graph: DrawnGraph | None = getattr(self._compiling, "graph", None)
        if graph is not None:
            graph.partitions.append(frozenset(node.name for node in gm.graph.nodes if node.op == "call_function"))
            graph.note_order(gm)
        yield lambda result: None


def _nodes(gm: GraphModule) -> Iterator[NodeRecord]:
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            continue  # a sub-graph or a constant: its user shows it
        waits = {one.name for one in node.args[0]} if _is_ordered(node) else ()
        inputs = tuple(one.name for one in node.all_input_nodes if one.op != "get_attr" and one.name not in waits)
        region = annotated.region_of(node)
        yield NodeRecord(node.name, _op(gm, node), region[0] if region else None, inputs, _source(node))


def _is_ordered(node: Node) -> bool:
    return node.op == "call_function" and str(node.target) == "control_deps"


def _op(gm: GraphModule, node: Node) -> str:
    if node.op in ("placeholder", "output"):
        return {"placeholder": "input", "output": "output"}[node.op]
    if _is_ordered(node):
        body = gm.get_submodule(str(node.args[1].target))
        operators = [annotated.operator_of(inner) for inner in annotated.nodes_of(body)]
        return ", ".join(filter(None, operators)) or "control_deps"
    return annotated.operator_of(node) or str(getattr(node.target, "__name__", node.target))


def _source(node: Node) -> str:
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return ""
    file, line, function = frames[-1]
    return f"{file.rpartition('/')[2]}:{line} in {function}"


__all__ = ["DrawnGraph", "GraphDrawer", "NodeRecord"]
