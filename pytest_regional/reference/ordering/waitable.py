"""What another node can wait for in Inductor: a value of its own, computed where it stands.

Three kinds of nodes are none, and Inductor loses the edge in silence (torch 2.11 to 2.15, where nothing else is said):
an op with several results, which lowering of 2.11 skips; an op without result that is not in the operator itself; and
a pointwise op, which its users before the waiting node compute for themselves.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from pytest_regional._torch.region_compile import is_op_overload
from pytest_regional.reference.ordering.operator import is_control_deps, operands_of, wait_for

_ADDED_FOR_ORDER = "element_for_order"
# Inductor's lowering computes a node that bears it into a buffer at once (2.11 to 2.15). Any true value will do.
_REALIZED = "inductor_realize_to_strides"
_FOR_ORDER = "for order"
# They always have a buffer, whose strides Inductor may choose.
_NEVER_INLINED = ("convolution",)


def waitable(node: torch.fx.Node) -> torch.fx.Node:
    """Return a node to wait for in place of ``node``, which is prepared for it."""
    value = node.meta.get("val")
    if isinstance(value, (tuple, list)):
        return _element(node, value)
    if _gives_nothing(node) and (earlier := _earlier_value(node)) is not None:
        wait_for(node, [earlier])
    elif isinstance(value, torch.Tensor) and _may_be_inlined(node):
        node.meta.setdefault(_REALIZED, _FOR_ORDER)
    return node


def undo_waitable(graph: torch.fx.Graph) -> None:
    """Take from ``graph`` what ``waitable`` added to it."""
    for node in reversed(graph.nodes):
        if node.meta.get(_REALIZED) == _FOR_ORDER:
            del node.meta[_REALIZED]
        if _ADDED_FOR_ORDER in node.meta and not node.users:
            graph.erase_node(node)


def _may_be_inlined(node: torch.fx.Node) -> bool:
    target: Any = node.target
    return is_op_overload(target) and target._opname not in _NEVER_INLINED and not is_control_deps(node)


def _gives_nothing(node: torch.fx.Node) -> bool:
    target: Any = node.target
    return is_op_overload(target) and not target._schema.returns


def _element(node: torch.fx.Node, values: tuple[object, ...] | list[object]) -> torch.fx.Node:
    number = next((i for i, value in enumerate(values) if isinstance(value, torch.Tensor)), None)
    if number is None:
        return node
    for user in node.users:
        if user.target is operator.getitem and user.args[1] == number and user.prev is node:
            return user
    with node.graph.inserting_after(node):
        element = node.graph.call_function(operator.getitem, (node, number))
    element.meta = {"val": values[number], _ADDED_FOR_ORDER: True}
    return element


def _earlier_value(node: torch.fx.Node) -> torch.fx.Node | None:
    candidates = [*operands_of(node), *node.graph.find_nodes(op="placeholder")]
    return next((other for other in candidates if isinstance(other.meta.get("val"), torch.Tensor)), None)
