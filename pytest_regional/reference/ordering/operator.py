"""Wrapping a node in the ``control_deps`` operator, which runs a body after its dependencies, and back.

The node itself becomes the call of the operator, and later the bare op again: its name, users and references stay valid
through any number of changes. PyTorch creates a new node instead, so that a second order edge must look for the first
one's replacement.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.fx

from pytest_regional._base.errors import RegionalError
from pytest_regional._torch.fx_graphs import is_graph_module, lazy_graph_module
from pytest_regional._torch.operators import control_deps


class OrderingError(RegionalError, ValueError):
    """A requested order has no meaning in this graph; the message says which nodes and why."""


class OrderingCycleError(OrderingError):
    """The requested order contradicts itself, data flow, or the order of effects.

    Attributes:
        cycle: names of the nodes (or regions) of one cycle, each before the next, with the first again at the end.
    """

    def __init__(self, message: str, cycle: Sequence[str]) -> None:
        super().__init__(message)
        self.cycle = tuple(cycle)


# Inductor's lowering computes a node with this into a buffer at once (2.11 to 2.15). Any true value is enough.
REALIZED = "inductor_realize_to_strides"
FOR_ORDER = "for order"

# Inductor reads these on the wrapped op; on the operator they would replace its own lowering (2.13 and 2.15).
_META_OF_THE_OP = ("eager_input_vals", "should_fallback")
_FALLBACK_ANNOTATION = "fallback_to_eager"


def is_control_deps(node: torch.fx.Node) -> bool:
    """Return whether ``node`` calls the operator."""
    return node.op == "call_function" and node.target is control_deps()


def dependencies_of(node: torch.fx.Node) -> tuple[torch.fx.Node, ...]:
    """Return the nodes that ``node`` waits for by order only; none for a bare op."""
    if not is_control_deps(node):
        return ()
    found: Any = node.args[0]
    return tuple(dependency for dependency in found if isinstance(dependency, torch.fx.Node))


def operands_of(node: torch.fx.Node) -> tuple[torch.fx.Node, ...]:
    """Return the nodes whose values ``node`` reads."""
    if not is_control_deps(node):
        return tuple(node.all_input_nodes)
    return tuple(dict.fromkeys(argument for argument in node.args[1:] if isinstance(argument, torch.fx.Node)))


def body_of(node: torch.fx.Node) -> torch.fx.GraphModule:
    """Return the graph that a call of the operator runs.

    Raises:
        OrderingError: the owner of the graph has no such body.
    """
    reference: Any = node.args[1]
    owner = node.graph.owning_module
    body = getattr(owner, str(reference.target), None) if owner is not None and reference.op == "get_attr" else None
    if not is_graph_module(body):
        raise OrderingError(f"control_deps node {node.name!r} refers to {reference!r}, which is not a graph module")
    found: torch.fx.GraphModule = body
    return found


def wait_for(node: torch.fx.Node, dependencies: Iterable[torch.fx.Node]) -> None:
    """Make ``node`` wait for ``dependencies`` in addition to earlier ones."""
    if not is_control_deps(node):
        _wrap(node)
    together = dict.fromkeys((*dependencies_of(node), *dependencies))
    node.args = (tuple(together), *node.args[1:])


def _wrap(node: torch.fx.Node) -> None:
    graph, owner = node.graph, node.graph.owning_module
    if owner is None:
        raise OrderingError("the graph has no GraphModule to hold the bodies of control_deps")
    arguments = tuple(node.all_input_nodes)
    name = _fresh_name(owner, f"subgraph_{node.name}")
    setattr(owner, name, _body(node, arguments))
    with graph.inserting_before(node):
        reference = graph.get_attr(name)
    node.meta = _meta_of_the_operator(node)
    node.target, node.args, node.kwargs = control_deps(), ((), reference, *arguments), {}


def _fresh_name(owner: torch.nn.Module, stem: str) -> str:
    name, number = stem, 0
    while hasattr(owner, name):
        name, number = f"{stem}_{number}", number + 1
    return name


def _body(node: torch.fx.Node, arguments: Sequence[torch.fx.Node]) -> torch.fx.GraphModule:
    """Return a graph of ``node`` only, with one placeholder for each node among its arguments."""
    graph = torch.fx.Graph()
    placeholders = {argument: _placeholder(graph, argument, i) for i, argument in enumerate(arguments)}
    inner = graph.node_copy(node, placeholders.__getitem__)
    value = inner.meta.get("val")
    if isinstance(value, torch.Tensor):
        # The buffer waits. Inductor gives most results of bodies one, but not single elements (2.11 to 2.15).
        inner.meta.setdefault(REALIZED, FOR_ORDER)
    output = graph.output(inner)
    if "val" in inner.meta:
        output.meta["val"] = inner.meta["val"]
    module: torch.fx.GraphModule = lazy_graph_module({}, graph, "OrderedOp")
    return module


def _placeholder(graph: torch.fx.Graph, argument: torch.fx.Node, number: int) -> torch.fx.Node:
    placeholder = graph.placeholder(f"arg_{number}")
    placeholder.meta = {key: argument.meta[key] for key in ("val", "tensor_meta") if key in argument.meta}
    owner = argument.graph.owning_module
    if argument.op == "get_attr" and "val" not in placeholder.meta and owner is not None:
        placeholder.meta["val"] = operator.attrgetter(str(argument.target))(owner)
    return placeholder


def _meta_of_the_operator(node: torch.fx.Node) -> dict[str, Any]:
    meta = {key: value for key, value in node.meta.items() if key not in _META_OF_THE_OP}
    custom = meta.get("custom")
    if isinstance(custom, dict) and _FALLBACK_ANNOTATION in custom:
        meta["custom"] = {key: value for key, value in custom.items() if key != _FALLBACK_ANNOTATION}
    return meta


def unwrap(node: torch.fx.Node) -> tuple[torch.fx.Node, ...]:
    """Replace a call of the operator with its body; return the nodes that now do its work."""
    body, reference = body_of(node), node.args[1]
    arguments: dict[torch.fx.Node, Any] = dict(zip(body.graph.find_nodes(op="placeholder"), node.args[2:], strict=True))
    inner = [other for other in body.graph.nodes if other.op not in ("placeholder", "output")]
    if len(inner) == 1 and body.graph.output_node().args[0] is inner[0] and not is_control_deps(inner[0]):
        _restore(node, inner[0], arguments)
        stands_for_it: tuple[torch.fx.Node, ...] = (node,)
    else:
        stands_for_it = _inline(node, body, arguments)
    if isinstance(reference, torch.fx.Node) and not reference.users:
        _remove_body(reference)
    return stands_for_it


def _restore(node: torch.fx.Node, inner: torch.fx.Node, arguments: dict[torch.fx.Node, Any]) -> None:
    """Make ``node`` the bare op again; metadata that passes have added to the call is kept."""
    args: Any = torch.fx.node.map_arg(inner.args, arguments.__getitem__)
    kwargs: Any = torch.fx.node.map_arg(inner.kwargs, arguments.__getitem__)
    node.meta = {**inner.meta, **node.meta, **_fallback_annotation(inner, node)}
    node.op, node.target, node.args, node.kwargs = inner.op, inner.target, args, kwargs


def _fallback_annotation(inner: torch.fx.Node, node: torch.fx.Node) -> dict[str, Any]:
    custom = inner.meta.get("custom")
    if not isinstance(custom, dict) or _FALLBACK_ANNOTATION not in custom:
        return {}
    return {"custom": {**node.meta.get("custom", {}), _FALLBACK_ANNOTATION: custom[_FALLBACK_ANNOTATION]}}


def _inline(
    node: torch.fx.Node, body: torch.fx.GraphModule, copies: dict[torch.fx.Node, Any]
) -> tuple[torch.fx.Node, ...]:
    """Copy a body from elsewhere: of several ops, or passing values through."""
    graph, owner = node.graph, node.graph.owning_module
    with graph.inserting_before(node):
        for inner in body.graph.nodes:
            if inner.op in ("placeholder", "output"):
                continue
            copies[inner] = graph.node_copy(inner, copies.__getitem__)
            if inner.op == "get_attr" and owner is not None:
                name = _fresh_name(owner, str(inner.target).replace(".", "_"))
                setattr(owner, name, operator.attrgetter(str(inner.target))(body))
                copies[inner].target = name
    _replace_results(node, torch.fx.node.map_arg(body.graph.output_node().args[0], copies.__getitem__))
    graph.erase_node(node)
    return tuple(copies[inner] for inner in body.graph.nodes if inner.op == "call_function")


def _replace_results(node: torch.fx.Node, result: Any) -> None:
    if isinstance(result, torch.fx.Node):
        node.replace_all_uses_with(result)
        return
    for user in list(node.users):
        if user.target is not operator.getitem:
            raise OrderingError(f"{user.name!r} uses all results of control_deps node {node.name!r} at once")
        index: Any = user.args[1]
        user.replace_all_uses_with(result[index])
        node.graph.erase_node(user)


def _remove_body(reference: torch.fx.Node) -> None:
    graph, name = reference.graph, str(reference.target)
    graph.erase_node(reference)
    if not any(str(other.target) == name for other in graph.find_nodes(op="get_attr")):
        delattr(graph.owning_module, name)
