"""Common-subexpression elimination that stays inside each region.

PyTorch's min-cut partitioner merges ``sin(x)`` outside a region with ``sin(x)`` inside it and so moves an op across
the border. Here an op is equal to another only if both are in the same region, or both in none.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch.fx

from pytest_regional._torch.region_compile import is_higher_order_op, is_op_overload, storage_key, without_cse
from pytest_regional.reference.effects import effect_classes, written_arguments
from pytest_regional.reference.regions import freeze, read_region_keys

_UNINITIALISED = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "empty_permuted")


def merge_common_subexpressions(graph: torch.fx.Graph) -> int:
    """Merge equal pure ops of the same region in ``graph``; return how many were removed."""
    keys = read_region_keys(graph)
    kept_apart = storages_kept_apart(graph)
    first: dict[Hashable, torch.fx.Node] = {}
    removed = 0
    for node in list(graph.nodes):
        if not _is_mergeable(node, kept_apart):
            continue
        token = (node.target, freeze(node.args), freeze(node.kwargs), keys.get(node))
        earlier = first.setdefault(token, node)
        if earlier is not node:
            node.replace_all_uses_with(earlier)
            graph.erase_node(node)
            removed += 1
    return removed


def cse_within_regions(partition_function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an AOTAutograd partitioner so that its own CSE gives way to ours."""

    def partition(joint_module: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        merge_common_subexpressions(joint_module.graph)
        joint_module.recompile()
        with without_cse():
            return partition_function(joint_module, *args, **kwargs)

    return partition


def _is_mergeable(node: torch.fx.Node, kept_apart: set[int | None]) -> bool:
    if node.op != "call_function" or not is_op_overload(node.target) or _name(node) in _UNINITIALISED:
        return False
    if not isinstance(node.meta.get("val"), torch.Tensor) or effect_classes(node) or written_arguments(node):
        return False
    return all(storage_key(other.meta.get("val")) not in kept_apart for other in (node, *node.all_input_nodes))


def _name(node: torch.fx.Node) -> str:
    target: Any = node.target
    return str(target._opname)


def storages_kept_apart(graph: torch.fx.Graph) -> set[int | None]:
    """Memory that is returned, and so must stay its caller's own, or that is written to."""
    written = (argument for node in graph.nodes for argument in written_arguments(node))
    bases = (argument for node in graph.nodes if _writes_once_lowered(node) for argument in node.all_input_nodes)
    return _storages([*graph.output_node().all_input_nodes, *written, *bases]) - {None}


def _writes_once_lowered(node: torch.fx.Node) -> bool:
    """Tell the functional wrappers of writing ops: Inductor lets them write to their arguments, which must differ."""
    name = str(getattr(node.target, "__name__", ""))
    return is_higher_order_op(node.target) and name.startswith(("auto_functionalized", "triton_kernel_wrapper"))


def _storages(nodes: Iterable[torch.fx.Node]) -> set[int | None]:
    return {storage_key(node.meta.get("val")) for node in nodes}
