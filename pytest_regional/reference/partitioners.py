"""AOTAutograd's partitioners, which split forward from backward, adapted for regions."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch.fx

from pytest_regional._torch.aot_autograd import partition_function
from pytest_regional._torch.config import without_cse, without_states_of_checkpoints
from pytest_regional._torch.operators import is_higher_order_op, is_op_overload, op_name
from pytest_regional._torch.tracing import storage_key
from pytest_regional.reference.effects import effect_classes, written_arguments
from pytest_regional.reference.gradients import annotate_lost_gradients, mark_sums_of_outer_values
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
    """Wrap an AOTAutograd partitioner so that our CSE replaces its CSE."""

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
    return op_name(target)


def storages_kept_apart(graph: torch.fx.Graph) -> set[int | None]:
    """Return storages that are returned, and so must stay separate, or written to."""
    written = (argument for node in graph.nodes for argument in written_arguments(node))
    bases = (argument for node in graph.nodes if _writes_once_lowered(node) for argument in node.all_input_nodes)
    return _storages([*graph.output_node().all_input_nodes, *written, *bases]) - {None}


def _writes_once_lowered(node: torch.fx.Node) -> bool:
    """Return whether a functional op becomes a writing one when Inductor lowers it: its arguments must differ."""
    name = str(getattr(node.target, "__name__", ""))
    return is_higher_order_op(node.target) and name.startswith(("auto_functionalized", "triton_kernel_wrapper"))


def _storages(nodes: Iterable[torch.fx.Node]) -> set[int | None]:
    return {storage_key(node.meta.get("val")) for node in nodes}


def partitioner_for(name: str) -> Callable[..., Any]:
    """Return the ``default`` or the ``min_cut`` partitioner; neither moves an op out of its region."""
    function = partition_function(name)
    if name == "min_cut":
        function = cse_within_regions(function)

    def partition(joint_module: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        annotate_lost_gradients(joint_module)
        mark_sums_of_outer_values(joint_module)
        pick_from_unused_tuples(joint_module.graph)
        with without_states_of_checkpoints():
            forward, backward = function(joint_module, *args, **kwargs)
        if drop_repeated(forward.graph, backward.graph):
            backward.recompile()
        return forward, backward

    return partition


def drop_repeated(forward: torch.fx.Graph, backward: torch.fx.Graph) -> int:
    """Remove RNG ops that the forward has run from the backward, with ops only they need; return how many ops.

    The default partitioner of torch 2.11 to 2.15 keeps an RNG op there whose mask is saved, because RNG ops are no dead
    code, and all ops that it needs: later random numbers would differ from eager's.
    """
    names = {node.name for node in forward.nodes if node.op == "call_function"}
    repeated = 0
    for node in reversed(backward.nodes):
        only_random = not node.is_impure(impure_random=False)
        if node.op == "call_function" and node.name in names and not node.users and only_random:
            backward.erase_node(node)
            repeated += 1
    return repeated


def pick_from_unused_tuples(graph: torch.fx.Graph) -> int:
    """Give every op with an unused tuple one user; return how many there were.

    Such an op stays in the graph if it draws random numbers (a dropout with an unused result must still draw). The
    default partitioner of torch 2.11 to 2.15 finds tuples by their users and otherwise fails with "Expected
    native_dropout to be a tensor".
    """
    unused = [
        node
        for node in graph.nodes
        if node.op == "call_function" and not node.users and isinstance(node.meta.get("val"), (tuple, list))
    ]
    for node in unused:
        with graph.inserting_after(node):
            element = graph.call_function(operator.getitem, (node, 0))
        element.meta = {**node.meta, "val": node.meta["val"][0]}
    return len(unused)
