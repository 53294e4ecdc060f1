"""What the overlap pass knows of a graph: collectives, waits, cost of compute, memory; and reservations of memory."""

from __future__ import annotations

import itertools
import math
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.fx

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._torch.distributed import NAMESPACE, group_name
from pytest_regional._torch.fx_graphs import bodies_of
from pytest_regional._torch.operators import is_op_overload, op_name, schema_of
from pytest_regional._torch.tracing import size_hint
from pytest_regional.reference.effects import COLLECTIVE, effect_classes, order_edges, written_arguments
from pytest_regional.reference.ordering.edges import body_of, is_control_deps, operands_of


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
        others = (node for node in self.order if not (self._communicates(node) or is_wait(self._ops.get(node))))
        self.barriers = {node for node in others if COLLECTIVE in effect_classes(node)}
        # The node that allocates the memory of each, behind views, waits and elements of coalesced results.
        self._roots: dict[torch.fx.Node, torch.fx.Node] = {}
        self.readers: dict[torch.fx.Node, list[torch.fx.Node]] = {start: [] for start in self.starts}
        self.inputs: dict[torch.fx.Node, list[torch.fx.Node]] = {}
        self._follow_memory()
        self.before: dict[torch.fx.Node, dict[torch.fx.Node, None]] = defaultdict(dict)
        self.after: dict[torch.fx.Node, dict[torch.fx.Node, None]] = defaultdict(dict)
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

    def _follow_memory(self) -> None:
        for node in self.order:
            op, source = self._ops.get(node), None
            if node in self.owner:
                source = self.owner[node].start
            elif node in self.waits and op is not None:
                source = op.args[0] if isinstance(op.args[0], torch.fx.Node) else None
            elif node not in self.starts:
                source = aliased_argument(op)
            self._roots[node] = node if source is None else self._roots[source]
            read = dict.fromkeys(self._roots[argument] for argument in operands_of(node))
            for root in read:
                if root in self.readers and root is not self._roots[node]:
                    self.readers[root].append(node)
            if node in self.starts:
                self.inputs[node] = [root for root in read if root.op not in ("placeholder", "get_attr")]

    def require(self, before: torch.fx.Node, after: torch.fx.Node) -> None:
        """Note that ``after`` must follow ``before``."""
        self.before[after][before] = None
        self.after[before][after] = None

    def _finish_reading(
        self, collective: Collective, writer: torch.fx.Node, position: dict[torch.fx.Node, int]
    ) -> None:
        """Keep waits before a later write of an input: a collective reads its inputs until its wait."""
        for wait in collective.waits:
            if position[wait] < position[writer]:
                self.require(wait, writer)

    def _communicates(self, node: torch.fx.Node) -> bool:
        return node in self.starts or node in self.waits

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
        return sum(
            tensor.element_size() * math.prod(map(size_hint, tensor.shape))
            for tensor in tensors
            if isinstance(tensor, torch.Tensor)
        )


@dataclass(frozen=True)
class OpCall:
    """A node's call, with arguments from the node's graph.

    Attributes:
        inner: the node with ``target``: the node itself, or the one in the body of ``control_deps``.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inner: torch.fx.Node

    @property
    def namespace(self) -> str:
        """Namespace such as ``aten``; empty if the target is not an op."""
        return str(self.target.namespace) if is_op_overload(self.target) else ""

    def argument(self, name: str) -> Any:
        """Return the argument with ``name`` in the schema, or None."""
        names = [argument.name for argument in schema_of(self.target).arguments]
        index = names.index(name) if name in names else len(self.args)
        return self.args[index] if index < len(self.args) else self.kwargs.get(name)


def op_of(node: torch.fx.Node) -> OpCall | None:
    """Return the call of ``node``; None for inputs, attributes, the output, and bodies of several ops."""
    if node.op != "call_function":
        return None
    if not is_control_deps(node):
        return OpCall(node.target, node.args, node.kwargs, node)
    body = body_of(node).graph
    inner = [other for other in body.nodes if other.op not in ("placeholder", "output")]
    if len(inner) != 1 or inner[0].op != "call_function":
        return None
    values: dict[torch.fx.Node, Any] = dict(zip(body.find_nodes(op="placeholder"), node.args[2:], strict=True))
    args: Any = torch.fx.node.map_arg(inner[0].args, values.__getitem__)
    kwargs: Any = torch.fx.node.map_arg(inner[0].kwargs, values.__getitem__)
    return OpCall(inner[0].target, args, kwargs, inner[0])


def aliased_argument(op: OpCall | None) -> torch.fx.Node | None:
    """Return the argument that the result of ``op`` aliases, or None if the result is new."""
    if op is None or not is_op_overload(op.target):
        return None
    schema = schema_of(op.target)
    if all(result.alias_info is None for result in schema.returns):
        return None
    for argument in schema.arguments:
        value = op.argument(argument.name) if argument.alias_info is not None else None
        if isinstance(value, torch.fx.Node):
            return value
    return None


def reads(user: torch.fx.Node, node: torch.fx.Node) -> bool:
    """Return whether ``user`` needs the value of ``node``, not only its order."""
    return node in operands_of(user)


_SINGLE = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce", "all_to_all_single", "broadcast")
_COALESCED = ("all_gather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced", "all_reduce_coalesced")
_WAIT = "wait_tensor"


@dataclass(frozen=True)
class Collective:
    """One functional collective.

    Attributes:
        start: the node that issues it, bare or in ``control_deps``.
        waits: the nodes that wait for its results, in program order; at least one.
        elements: the nodes that pick results of a coalesced collective.
        op: its operator, such as ``all_reduce``.
        group: name of its process group.
    """

    start: torch.fx.Node
    waits: tuple[torch.fx.Node, ...]
    elements: tuple[torch.fx.Node, ...]
    op: str
    group: str


def find_collectives(order: Sequence[torch.fx.Node], ops: Mapping[torch.fx.Node, OpCall]) -> list[Collective]:
    """Return the collectives whose start and waits can be moved, in program order.

    Excludes a start without a wait, or whose result is read without waiting.
    """
    position = {node: i for i, node in enumerate(order)}
    found = []
    for start in order:
        op = ops.get(start)
        if op is None or op.namespace != NAMESPACE or op_name(op.target) not in (*_SINGLE, *_COALESCED):
            continue
        elements = [user for user in start.users if user in ops and ops[user].target is operator.getitem]
        readers = {user for node in (start, *elements) for user in node.users if reads(user, node)}.difference(elements)
        if readers and all(is_wait(ops.get(reader)) for reader in readers):
            waits = tuple(sorted(readers, key=position.__getitem__))
            group = group_name(op.argument("group_name"))
            found.append(Collective(start, waits, tuple(elements), op_name(op.target), group))
    return found


def is_wait(op: OpCall | None) -> bool:
    """Return whether ``op`` waits for a collective."""
    return op is not None and op.namespace == NAMESPACE and op_name(op.target) == _WAIT


Cost = Callable[[torch.fx.Node], float]

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "linear", "matmul", "einsum",
             "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm", "_int_mm", "_addmm_activation", "_linear_pointwise",
             "_weight_int4pack_mm", "_weight_int8pack_mm")  # fmt: skip
_CONVOLUTIONS = ("convolution", "_convolution", "convolution_backward", "convolution_overrideable",
                 "_convolution_pointwise", "mkldnn_convolution", "cudnn_convolution")  # fmt: skip
_ATTENTION = ("flex_attention", "flex_attention_backward", "_flash_attention_forward", "_flash_attention_backward",
              "_efficient_attention_forward", "_efficient_attention_backward")  # fmt: skip
_COMPUTE = frozenset((*_PRODUCTS, *_CONVOLUTIONS, *_ATTENTION))


def compute_cost(node: torch.fx.Node) -> float:
    """Return 1.0 for a matrix product, convolution or attention, 0.0 for other ops, the sum for calls of a graph.

    The default of ``overlap_collectives(cost=...)``: how much communication ``node`` can hide, 0 for none.
    """
    name = op_name(node.target)
    if node.op == "call_function" and (name in _COMPUTE or name.startswith("_scaled_dot_product_")):
        return 1.0
    if node.op not in ("call_function", "call_module"):
        return 0.0
    return float(sum(compute_cost(inner) for body in bodies_of(node, modules=True) for inner in body.graph.nodes))


MEMORY = "memory"
IN_FLIGHT = "in_flight"


@dataclass(eq=False)
class Reservation:
    """``amount`` of one resource on all positions from ``begin`` up to, not including, ``end``."""

    amount: int
    begin: int
    end: int


@dataclass
class _Resource:
    name: str
    limit: int | None
    claims: list[Reservation] = field(default_factory=list)
    levels: Any = None
    """The amount at each position, if there is a limit."""

    def amounts(self, length: int) -> list[int]:
        steps = [0] * (length + 1)
        for claim in self.claims:
            steps[claim.begin] += claim.amount
            steps[claim.end] -= claim.amount
        return list(itertools.accumulate(steps))[:length]

    def above(self, begin: int, end: int, threshold: int) -> Any:
        """Return the positions in ``[begin, end)`` with an amount above ``threshold``."""
        return np.flatnonzero(self.levels[begin:end] > threshold) + begin

    def add(self, begin: int, end: int, amount: int) -> None:
        """Raise all positions in ``[begin, end)`` by ``amount``."""
        if self.levels is not None:
            self.levels[begin:end] += amount


class Reservations:
    """The reservations of a program's collectives for the given order."""

    def __init__(
        self, program: OverlapProgram, order: Sequence[torch.fx.Node], memory: int | None, in_flight: int | None
    ):
        self._position = {node: i for i, node in enumerate(order)}
        self._length = len(order)
        self._memory = _Resource(MEMORY, memory)
        self._in_flight = _Resource(IN_FLIGHT, in_flight)
        self._results = {c.start: self._result(program, c) for c in program.collectives}
        self._inputs: dict[torch.fx.Node, Reservation] = {}
        for collective in program.collectives:
            for root in program.inputs[collective.start]:
                self._hold(root, program, collective)
        self._flights = {c.start: Reservation(1, self._begin(c), self._end(c)) for c in program.collectives}
        self._read = program.inputs
        self._memory.claims = [*self._results.values(), *self._inputs.values()]
        self._in_flight.claims = list(self._flights.values())
        for resource in (self._memory, self._in_flight):
            if resource.limit is not None:
                resource.levels = np.array(resource.amounts(self._length), dtype=np.int64)

    def _begin(self, collective: Collective) -> int:
        return self._position[collective.start]

    def _end(self, collective: Collective) -> int:
        return max(self._position[wait] for wait in collective.waits) + 1

    def _result(self, program: OverlapProgram, collective: Collective) -> Reservation:
        ends = [self._end(collective)]
        for reader in program.readers[collective.start]:
            other = program.starts.get(reader)
            ends.append(self._position[reader] + 1 if other is None else self._end(other))
        return Reservation(program.size_of(collective.start), self._begin(collective), max(ends))

    def _hold(self, root: torch.fx.Node, program: OverlapProgram, collective: Collective) -> None:
        if root in self._results:  # the result of another collective: its reservation reaches this wait
            return
        begin, end = self._begin(collective), self._end(collective)
        claim = self._inputs.setdefault(root, Reservation(program.size_of(root), begin, end))
        claim.begin, claim.end = min(claim.begin, begin), max(claim.end, end)

    def peaks(self) -> tuple[int, int]:
        """Return the highest communication memory in bytes, and the highest number in flight."""
        return max(self._memory.amounts(self._length)), max(self._in_flight.amounts(self._length))

    def size_of(self, collective: Collective) -> int:
        """Return the bytes that ``collective`` holds while in flight, without results of other collectives."""
        held = (self._inputs[root].amount for root in self._read[collective.start] if root in self._inputs)
        return self._results[collective.start].amount + sum(held)

    def earliest(self, collective: Collective, lowest: int) -> tuple[int, str | None]:
        """Return the first position in ``[lowest, start]`` from which all bounds hold, and the bound that stops it."""
        stops = [
            (self._room_before(resource, claims, lowest, self._begin(collective)), resource.name)
            for resource, claims in self._held(collective)
        ]
        stop, name = max(stops, key=lambda pair: pair[0])
        return (stop, name) if stop > lowest else (lowest, None)

    def latest(self, collective: Collective, wait: torch.fx.Node, highest: int) -> tuple[int, str | None]:
        """Return the last position in ``(wait, highest]`` up to which all bounds hold, and the bound that stops it."""
        stops = [
            (self._room_after(resource, claims, self._position[wait] + 1, highest), resource.name)
            for resource, claims in self._held(collective)
        ]
        stop, name = min(stops, key=lambda pair: pair[0])
        return (stop, name) if stop < highest else (highest, None)

    def start_at(self, collective: Collective, begin: int) -> None:
        """Move the start of ``collective`` before position ``begin``."""
        for resource, claims in self._held(collective):
            for claim in claims:
                if begin < claim.begin:
                    resource.add(begin, claim.begin, claim.amount)
                    claim.begin = begin

    def wait_at(self, collective: Collective, end: int) -> None:
        """Move a wait for ``collective`` before position ``end``."""
        for resource, claims in self._held(collective):
            for claim in claims:
                if end > claim.end:
                    resource.add(claim.end, end, claim.amount)
                    claim.end = end

    def _held(self, collective: Collective) -> Iterator[tuple[_Resource, list[Reservation]]]:
        """Yield the reservations that grow with ``collective``: its inputs, its result, and its flight."""
        inputs = [self._inputs.get(root) or self._results[root] for root in self._read[collective.start]]
        yield self._memory, [*inputs, self._results[collective.start]]
        yield self._in_flight, [self._flights[collective.start]]

    def _room_before(self, resource: _Resource, claims: Sequence[Reservation], lowest: int, highest: int) -> int:
        if resource.limit is None:
            return lowest
        begins = sorted({claim.begin for claim in claims if lowest < claim.begin}, reverse=True)
        for high, low in itertools.pairwise((*begins, lowest)):
            added = sum(claim.amount for claim in claims if claim.begin >= high)
            above = resource.above(low, high, resource.limit - added)
            if above.size:
                return min(int(above[-1]) + 1, highest)
        return lowest

    def _room_after(self, resource: _Resource, claims: Sequence[Reservation], lowest: int, highest: int) -> int:
        if resource.limit is None:
            return highest
        ends = sorted({claim.end for claim in claims if claim.end < highest})
        for low, high in itertools.pairwise((*ends, highest)):
            added = sum(claim.amount for claim in claims if claim.end <= low)
            above = resource.above(low, high, resource.limit - added)
            if above.size:
                return max(int(above[0]), lowest)
        return highest
