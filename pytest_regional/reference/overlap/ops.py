"""The op that a node runs, whether bare or in the body of ``control_deps``."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch.fx

from pytest_regional._torch.region_compile import is_op_overload
from pytest_regional.reference.ordering.operator import body_of, is_control_deps, operands_of


@dataclass(frozen=True)
class Op:
    """What a node calls, with arguments of the graph that the node stands in.

    Attributes:
        inner: the node that names ``target``: the node itself, or the one in the body of ``control_deps``.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inner: torch.fx.Node

    @property
    def name(self) -> str:
        """Name without overload, such as ``mm``; for higher-order ops and functions their own."""
        if is_op_overload(self.target):
            return str(self.target._opname)
        return str(getattr(self.target, "__name__", self.target))

    @property
    def namespace(self) -> str:
        """Namespace such as ``aten``; empty where the target is no op."""
        return str(self.target.namespace) if is_op_overload(self.target) else ""

    def argument(self, name: str) -> Any:
        """Return the argument that the schema calls ``name``, or None."""
        names = [argument.name for argument in self.target._schema.arguments]
        index = names.index(name) if name in names else len(self.args)
        return self.args[index] if index < len(self.args) else self.kwargs.get(name)


def op_of(node: torch.fx.Node) -> Op | None:
    """Return what ``node`` runs; None for inputs, attributes, the output, and bodies of several ops."""
    if node.op != "call_function":
        return None
    if not is_control_deps(node):
        return Op(node.target, node.args, node.kwargs, node)
    body = body_of(node).graph
    inner = [other for other in body.nodes if other.op not in ("placeholder", "output")]
    if len(inner) != 1 or inner[0].op != "call_function":
        return None
    values: dict[torch.fx.Node, Any] = dict(zip(body.find_nodes(op="placeholder"), node.args[2:], strict=True))
    args: Any = torch.fx.node.map_arg(inner[0].args, values.__getitem__)
    kwargs: Any = torch.fx.node.map_arg(inner[0].kwargs, values.__getitem__)
    return Op(inner[0].target, args, kwargs, inner[0])


def aliased_argument(op: Op | None) -> torch.fx.Node | None:
    """Return the argument whose memory the result of ``op`` is, or None where the result is new."""
    if op is None or not is_op_overload(op.target):
        return None
    schema = op.target._schema
    if all(result.alias_info is None for result in schema.returns):
        return None
    for argument in schema.arguments:
        value = op.argument(argument.name) if argument.alias_info is not None else None
        if isinstance(value, torch.fx.Node):
            return value
    return None


def is_element(op: Op | None) -> bool:
    """Return whether ``op`` picks an element of a tuple or list."""
    return op is not None and op.target is operator.getitem


def reads(user: torch.fx.Node, node: torch.fx.Node) -> bool:
    """Return whether ``user`` needs the value of ``node``, not its order alone."""
    return node in operands_of(user)
