"""Functional collectives of a graph: their start nodes and wait nodes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx

from pytest_regional._torch.distributed import NAMESPACE, group_name
from pytest_regional._torch.fx_graphs import bodies_of
from pytest_regional._torch.operators import is_op_overload, op_name, schema_of
from pytest_regional.reference.effects import COLLECTIVE, effect_classes
from pytest_regional.reference.ordering.operator import body_of, is_control_deps, operands_of


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
    def name(self) -> str:
        """Name without overload, such as ``mm``; for higher-order ops and functions, their name."""
        if is_op_overload(self.target):
            return op_name(self.target)
        return str(getattr(self.target, "__name__", self.target))

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


def is_element(op: OpCall | None) -> bool:
    """Return whether ``op`` picks an element of a tuple or list."""
    return op is not None and op.target is operator.getitem


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
    found = [_collective(node, ops, position) for node in order if _is_start(ops.get(node))]
    return [collective for collective in found if collective is not None]


def other_collectives(
    order: Sequence[torch.fx.Node], ops: Mapping[torch.fx.Node, OpCall], known: set[torch.fx.Node]
) -> set[torch.fx.Node]:
    """Return other nodes that issue collectives; nothing is issued earlier than they are."""
    candidates = (node for node in order if node not in known and not is_wait(ops.get(node)))
    return {node for node in candidates if COLLECTIVE in effect_classes(node)}


def is_wait(op: OpCall | None) -> bool:
    """Return whether ``op`` waits for a collective."""
    return op is not None and op.namespace == NAMESPACE and op.name == _WAIT


def _is_start(op: OpCall | None) -> bool:
    return op is not None and op.namespace == NAMESPACE and op.name in (*_SINGLE, *_COALESCED)


def _collective(
    start: torch.fx.Node, ops: Mapping[torch.fx.Node, OpCall], position: Mapping[torch.fx.Node, int]
) -> Collective | None:
    op = ops[start]
    elements = [user for user in start.users if is_element(ops.get(user))]
    readers = {user for node in (start, *elements) for user in node.users if reads(user, node)}.difference(elements)
    if not readers or not all(is_wait(ops.get(reader)) for reader in readers):
        return None
    waits = sorted(readers, key=position.__getitem__)
    return Collective(start, tuple(waits), tuple(elements), op.name, group_name(op.argument("group_name")))


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
    if node.op == "call_function" and _is_compute(op_name(node.target)):
        return 1.0
    if node.op not in ("call_function", "call_module"):
        return 0.0
    return float(sum(compute_cost(inner) for body in bodies_of(node, modules=True) for inner in body.graph.nodes))


def _is_compute(name: str) -> bool:
    return name in _COMPUTE or name.startswith("_scaled_dot_product_")
