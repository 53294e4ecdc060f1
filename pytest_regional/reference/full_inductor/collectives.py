"""In-place collectives, such as ``torch.distributed.all_reduce`` in a ``make_fx`` trace, made functional."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from pytest_regional._torch.distributed import NAMESPACE, functionalize_collectives, group_name
from pytest_regional._torch.fx_graphs import attribute, snapshot
from pytest_regional._torch.operators import is_op_overload
from pytest_regional._torch.tracing import detect_fake_mode, fake_execution, storage_key
from pytest_regional.reference.full_inductor.decompose import replace_node
from pytest_regional.reference.full_inductor.errors import FullInductorError


def use_functional_collectives(gm: torch.fx.GraphModule) -> None:
    """Rewrite in-place collectives of ``gm`` to functional ones, whose groups are given by name.

    Raises:
        FullInductorError: PyTorch cannot rewrite one, or its result is also read through a view.
    """
    if not any(map(_is_in_place, gm.graph.nodes)):
        return
    try:
        can_rewrite = functionalize_collectives(gm)
    except (AssertionError, NotImplementedError) as error:
        raise FullInductorError(f"an in-place collective cannot be rewritten: {error}") from error
    if can_rewrite:
        for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
            _use_received_value(node)
        _name_groups(gm)
    left = next(filter(_is_in_place, gm.graph.nodes), None)
    if left is not None:
        raise FullInductorError(
            f"node {left.name!r} ({left.target}) is an in-place collective, which Inductor does not support and "
            f"this torch ({torch.__version__}) does not rewrite: use torch.distributed._functional_collectives.",
            node=left.name,
        )
    gm.graph.lint()
    gm.recompile()


def _is_in_place(node: torch.fx.Node) -> bool:
    target: Any = node.target
    return node.op == "call_function" and is_op_overload(target) and target.namespace == "c10d"


def _use_received_value(copy: torch.fx.Node) -> None:
    """Make later nodes use the collective's result instead of the tensor it was written to."""
    target, received = copy.args
    if not isinstance(target, torch.fx.Node) or not isinstance(received, torch.fx.Node):
        return
    if received.target is not torch.ops._c10d_functional.wait_tensor.default:
        return
    later = _nodes_behind(copy)
    for user in list(target.users):
        if user in later:
            user.replace_input_with(target, received)
    _refuse_views(target, later)
    _describe(received)
    if target.op == "placeholder":
        copy.replace_all_uses_with(received)
        copy.graph.output_node().prepend(copy)
    else:
        replace_node(copy, received)


def _nodes_behind(node: torch.fx.Node) -> set[torch.fx.Node]:
    nodes = list(node.graph.nodes)
    return set(nodes[nodes.index(node) + 1 :])


def _refuse_views(target: torch.fx.Node, later: set[torch.fx.Node]) -> None:
    storage = storage_key(target.meta.get("val"))
    rewritten = (torch.ops._c10d_functional.wait_tensor.default, torch.ops.aten.copy_.default)
    for node in later:
        for source in node.all_input_nodes:
            if source.target not in rewritten and storage_key(source.meta.get("val")) == storage is not None:
                raise FullInductorError(
                    f"a collective writes to {target.name!r}, and node {node.name!r} reads that through the view "
                    f"{source.name!r}: take the view after the collective, or use functional collectives.",
                    node=node.name,
                )


def _describe(received: torch.fx.Node) -> None:
    """Give the collective and its wait their own values: PyTorch's rewriting copies those of the input."""
    (collective,) = received.args
    value = received.meta.get("val")
    if isinstance(value, torch.Tensor) and isinstance(collective, torch.fx.Node):
        with fake_execution(detect_fake_mode([value])):
            collective.meta["val"] = torch.empty_like(value)
            received.meta["val"] = snapshot(collective.meta["val"])


def _name_groups(gm: torch.fx.GraphModule) -> None:
    """Give groups by name: a group as an attribute keeps the result out of caches."""
    for node in gm.graph.nodes:
        if is_op_overload(node.target) and node.target.namespace == NAMESPACE:
            node.args = tuple(_named(gm, argument) for argument in node.args)
    for node in gm.graph.find_nodes(op="get_attr"):
        if not node.users:
            gm.graph.erase_node(node)


def _named(gm: torch.fx.GraphModule, argument: Any) -> Any:
    if isinstance(argument, torch.fx.Node) and argument.op == "get_attr":
        group = attribute(gm, str(argument.target))
        return group_name(group) if hasattr(group, "group_name") else argument
    return argument
