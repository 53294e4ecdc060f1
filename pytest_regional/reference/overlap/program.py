"""The pass's view of a graph, apart from the order that it changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._torch.operators import is_op_overload
from pytest_regional._torch.tracing import size_hint
from pytest_regional.reference.effects import effect_classes, order_edges, written_arguments
from pytest_regional.reference.ordering.operator import is_control_deps, operands_of
from pytest_regional.reference.overlap.collectives import (
    Collective,
    Cost,
    OpCall,
    aliased_argument,
    find_collectives,
    op_of,
    other_collectives,
)


class OverlapProgram:
    """A graph, its collectives, required precedence, and the memory of each value.

    Attributes:
        order: the nodes in program order.
        collectives: those that can be moved, in program order.
        barriers: other nodes that issue collectives; no start passes them.
        before: each node's required predecessors: values, order edges, effects, writes.
        after: each node's required successors.
        readers: for each start, the nodes that read its result, except for waits and views.
        inputs: for each start, the computed values it reads, with views replaced by their base.
    """

    def __init__(self, graph: torch.fx.Graph, cost: Cost) -> None:
        self.order: list[torch.fx.Node] = list(graph.nodes)
        self._ops: dict[torch.fx.Node, OpCall] = {node: op for node in self.order if (op := op_of(node)) is not None}
        self._cost = cost
        self._costs: dict[torch.fx.Node, float] = {}
        self.collectives = find_collectives(self.order, self._ops)
        self.starts: dict[torch.fx.Node, Collective] = {c.start: c for c in self.collectives}
        self.waits: dict[torch.fx.Node, Collective] = {wait: c for c in self.collectives for wait in c.waits}
        self.owner = {element: c for c in self.collectives for element in c.elements}
        if not self.collectives:
            return
        self.barriers = other_collectives(self.order, self._ops, {*self.starts, *self.waits})
        self._roots = self._memory()
        self.readers, self.inputs = self._readers(), self._inputs()
        self.before: dict[torch.fx.Node, dict[torch.fx.Node, None]] = defaultdict(dict)
        self.after: dict[torch.fx.Node, dict[torch.fx.Node, None]] = defaultdict(dict)
        self._connect(graph)

    def require(self, before: torch.fx.Node, after: torch.fx.Node) -> None:
        """Note that ``after`` must follow ``before``."""
        self.before[after][before] = None
        self.after[before][after] = None

    def _connect(self, graph: torch.fx.Graph) -> None:
        position = {node: i for i, node in enumerate(self.order)}
        for node in self.order:
            for source in node.all_input_nodes:
                self.require(source, node)
        for before, after in order_edges(graph):
            # Order between collectives follows their groups, while they are moved.
            if not (self._communicates(before) and self._communicates(after)):
                self.require(before, after)
            if before in self.starts and written_arguments(after):
                self._finish_reading(self.starts[before], after, position)

    def _finish_reading(
        self, collective: Collective, writer: torch.fx.Node, position: dict[torch.fx.Node, int]
    ) -> None:
        """Keep waits before a later write of an input: a collective reads its inputs until its wait."""
        for wait in collective.waits:
            if position[wait] < position[writer]:
                self.require(wait, writer)

    def _communicates(self, node: torch.fx.Node) -> bool:
        return node in self.starts or node in self.waits

    def _memory(self) -> dict[torch.fx.Node, torch.fx.Node]:
        """Follow views, waits and elements of coalesced results to the node that allocates the memory."""
        roots: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in self.order:
            source = None if node in self.starts else self._view_of(node)
            roots[node] = node if source is None else roots[source]
        return roots

    def _view_of(self, node: torch.fx.Node) -> torch.fx.Node | None:
        op = self._ops.get(node)
        if node in self.owner:
            return self.owner[node].start
        if node in self.waits and op is not None:
            waited: Any = op.args[0]
            return waited if isinstance(waited, torch.fx.Node) else None
        return aliased_argument(op)

    def _readers(self) -> dict[torch.fx.Node, list[torch.fx.Node]]:
        readers: dict[torch.fx.Node, list[torch.fx.Node]] = {start: [] for start in self.starts}
        for node in self.order:
            read = {self._roots[argument] for argument in operands_of(node)}.difference((self._roots[node],))
            for root in read:
                if root in readers:
                    readers[root].append(node)
        return readers

    def _inputs(self) -> dict[torch.fx.Node, list[torch.fx.Node]]:
        found = {}
        for start in self.starts:
            roots = dict.fromkeys(self._roots[argument] for argument in operands_of(start))
            found[start] = [root for root in roots if root.op not in ("placeholder", "get_attr")]
        return found

    def result_of(self, node: torch.fx.Node) -> torch.fx.Node | None:
        """Return the start whose result ``node`` is or views, or None."""
        return root if (root := self._roots[node]) in self.starts else None

    def is_view_of_result(self, node: torch.fx.Node) -> bool:
        """Return whether ``node`` is a view of a collective's result: it costs nothing and moves with the wait."""
        moves = node not in self.starts and node not in self.waits and node not in self.owner
        return moves and self.result_of(node) is not None and not written_arguments(node) and self._is_pure(node)

    def is_preparation(self, node: torch.fx.Node) -> bool:
        """Return whether ``node`` may move with a start: pure, no compute, no use of other results."""
        if node.op == "get_attr":
            return True
        if node.op != "call_function" or node in self.waits or node in self.starts or is_control_deps(node):
            return False
        read = (self.result_of(other) for other in (node, *operands_of(node)))
        return self._is_pure(node) and not self.hides(node) and all(root is None for root in read)

    def _is_pure(self, node: torch.fx.Node) -> bool:
        op = self._ops.get(node)
        if op is None or is_control_deps(node) or effect_classes(node) or written_arguments(node):
            return False
        return is_op_overload(op.target) or getattr(op.target, "__module__", "") in ("_operator", "math")

    def hides(self, node: torch.fx.Node) -> float:
        """Return how much communication ``node`` can hide."""
        if node.op not in ("call_function", "call_module") or self._communicates(node):
            return 0.0
        if node not in self._costs:
            op = self._ops.get(node)
            self._costs[node] = self._cost(node if op is None else op.inner)
        return self._costs[node]

    def size_of(self, node: torch.fx.Node) -> int:
        """Return the bytes of all tensors that ``node`` makes, with hints for symbolic sizes.

        Raises:
            RegionalValueError: the trace kept no value of ``node``.
        """
        if "val" not in node.meta:
            raise RegionalValueError(
                f"node {node.name!r} ({node.target}) has no meta['val'], so that the memory of the collectives around "
                f"it is unknown: trace with fake tensors, or run FakeTensorProp over the graph first"
            )
        value = node.meta["val"]
        tensors = value if isinstance(value, (list, tuple)) else (value,)
        return sum(_bytes(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor))

    def hiding(self, order: Sequence[torch.fx.Node]) -> list[int]:
        """Return the positions in ``order`` of nodes that hide communication."""
        return [i for i, node in enumerate(order) if self.hides(node) > 0]


def _bytes(tensor: torch.Tensor) -> int:
    elements: int = tensor.element_size()
    for size in tensor.shape:
        elements *= size_hint(size)
    return elements
