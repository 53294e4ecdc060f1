"""AOTAutograd's partitioners, which split forward from backward, with what the regions need changed around them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch.fx

from pytest_regional._torch.region_compile import partition_function
from pytest_regional.reference.cse import cse_within_regions
from pytest_regional.reference.gradients import annotate_lost_gradients, mark_sums_of_outer_values


def partitioner_for(name: str) -> Callable[..., Any]:
    """Return the ``default`` or the ``min_cut`` partitioner; neither moves an op across the border of a region."""
    function = partition_function(name)
    if name == "min_cut":
        function = cse_within_regions(function)

    def partition(joint_module: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        annotate_lost_gradients(joint_module)
        mark_sums_of_outer_values(joint_module)
        pick_from_unused_tuples(joint_module.graph)
        forward, backward = function(joint_module, *args, **kwargs)
        if drop_repeated(forward.graph, backward.graph):
            backward.recompile()
        return forward, backward

    return partition


def drop_repeated(forward: torch.fx.Graph, backward: torch.fx.Graph) -> int:
    """Remove from the backward draws that the forward has made, and ops for them alone; return how many ops.

    The default partitioner of torch 2.11 to 2.15 leaves a draw there whose mask is saved, because draws are no dead
    code, and all ops that it draws for: later draws would differ from eager's.
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
    """Give every op that makes a tuple nobody uses one user; return how many there were.

    Such an op stays in the graph if it draws random numbers (a dropout whose result is dropped must still draw). The
    default partitioner of torch 2.11 to 2.15 knows a tuple by its users only and fails on it with "Expected
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
