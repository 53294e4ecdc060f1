"""Regions of gradients that have none in the trace.

AOTAutograd copies an op's annotation to its gradients by autograd number. Two kinds get none:

* Gradients of an op that made several autograd nodes (``y /= s``, ``y[0] = v``): no forward op has that number.
  ``annotate_lost_gradients`` finds the op in the joint graph, which still has forward and backward.
* Sums of gradients, which belong to no single op. ``with_sums_of_gradients`` assigns them to a region by their
  summands. ``mark_sums_of_outer_values`` finds those that are gradients of values from outside.
"""

from __future__ import annotations

import contextlib
import operator
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping
from typing import Any

import torch.fx

from pytest_regional._torch.aot_autograd import (
    annotate_like,
    autograd_number,
    has_lost_its_forward_op,
    partition_function,
    stack_of,
)
from pytest_regional._torch.config import without_cse, without_states_of_checkpoints
from pytest_regional._torch.fx_graphs import is_backward_node, is_gradient_sum, region_mark
from pytest_regional._torch.operators import is_higher_order_op, is_op_overload, op_name
from pytest_regional._torch.tracing import current_fake_mode, detect_fake_mode, storage_key
from pytest_regional.reference.effects import effect_classes, element_of, written_arguments
from pytest_regional.reference.regions import RegionKey, freeze, read_region_keys

#: Marks sums of gradients: partitioners copy ``meta`` into the backward (2.11 to 2.15).
_OF_OUTER_VALUE = "regional_gradient_of_outer_value"


def annotate_lost_gradients(joint: torch.fx.GraphModule) -> int:
    """Annotate the gradients in ``joint``, and in its bodies, for which AOTAutograd found no forward op; count them.

    The forward op is the one with the same user lines and the nearest autograd number; of two, the later one, since an
    in-place op makes its autograd node before it makes others. Linear, except for a binary search per gradient.
    """
    graphs = [module.graph for module in joint.modules() if isinstance(module, torch.fx.GraphModule)]
    nodes = [node for graph in graphs for node in graph.nodes]
    lost = [node for node in nodes if has_lost_its_forward_op(node) and not region_mark(node)[0]]
    if not lost:
        return 0
    forward = _ForwardOps({stack_of(node) for node in lost} - {None}, nodes)
    annotated = 0
    for node in lost:
        origin = forward.nearest(node)
        if origin is not None and region_mark(origin)[0]:
            annotate_like(node, origin)
            annotated += 1
    return annotated


class _ForwardOps:
    """Forward ops by the user's lines and by autograd number."""

    def __init__(self, stacks: Container[str | None], nodes: Iterable[torch.fx.Node]) -> None:
        by_number: dict[str, dict[int, torch.fx.Node]] = defaultdict(dict)
        for node in nodes:
            stack, number = stack_of(node), autograd_number(node)
            if stack in stacks and stack is not None and number is not None and not is_backward_node(node):
                by_number[stack].setdefault(number, node)
        self._ops = {stack: [found[number] for number in sorted(found)] for stack, found in by_number.items()}
        self._numbers = {stack: sorted(found) for stack, found in by_number.items()}

    def nearest(self, gradient: torch.fx.Node) -> torch.fx.Node | None:
        stack, number = stack_of(gradient), autograd_number(gradient)
        if stack not in self._ops or stack is None or number is None:
            return None
        numbers, ops = self._numbers[stack], self._ops[stack]
        above = bisect_left(numbers, number)
        near = [i for i in (above, above - 1) if 0 <= i < len(ops)]
        return ops[min(near, key=lambda i: abs(numbers[i] - number))]


def mark_sums_of_outer_values(joint: torch.fx.GraphModule) -> int:
    """Mark the sums of gradients of values that no region made; count them.

    In ``x = x + f(x)`` with the addition outside, the gradient of ``x`` is the sum of the gradients of both terms. It
    stays outside like the addition, so that equal blocks stay equal and are compiled once. An addition has no
    op in the backward. It is found by autograd number: a gradient reads the sum, and its forward op's result is only
    used by ops outside. Linear.
    """
    marked = 0
    for module in joint.modules():
        if isinstance(module, torch.fx.GraphModule):
            sums = [node for node in module.graph.nodes if _may_be_taken(node)]
            forward: dict[int | None, torch.fx.Node] = {}
            for node in _ops(module.graph.nodes) if sums else ():
                if not is_backward_node(node):
                    forward.setdefault(autograd_number(node), node)
            for node in sums:
                if any(_leaves_its_region(forward.get(autograd_number(reader))) for reader in _ops(node.users)):
                    node.meta[_OF_OUTER_VALUE] = True
                    marked += 1
    return marked


def _leaves_its_region(forward: torch.fx.Node | None) -> bool:
    """Return whether all users of the forward op's result are outside of its region."""
    if forward is None or not region_mark(forward)[0]:
        return False
    readers = [reader for reader in _ops(forward.users) if not is_backward_node(reader)]
    return bool(readers) and all(region_mark(reader) != region_mark(forward) for reader in readers)


def with_sums_of_gradients(
    graph: torch.fx.Graph, keys: Mapping[torch.fx.Node, RegionKey], ordered: Container[torch.fx.Node] = ()
) -> Mapping[torch.fx.Node, RegionKey]:
    """Return ``keys`` with those of the sums of gradients that belong to a region.

    A sum belongs to a region that reads it, and that computed at least one summand, if each of the others

    * was computed there too, or is an input of the graph, or
    * was computed before anything of the region, and the region reads it as well: a gradient that passes through, as on
      either side of a residual connection.

    If only the region reads the sum, ops outside of all regions may have computed the others at any time. A sum counts
    as its summands, and one that is read only by a sum of the region is read by the region. Sums that the region does
    not read stay outside, such as the gradient of a weight: they split nothing, and blocks that share a weight stay
    equal. The sums marked by :func:`mark_sums_of_outer_values` stay outside, too.

    This needs no additional partitions. A sum waits for nothing of the region except its summands, so it can be in the
    partition of the last one, or in the first partition that reads it. This holds if only data flow orders nodes;
    ``ordered`` nodes have other order edges and are skipped.
    """
    sums = [node for node in graph.nodes if _may_be_taken(node) and node not in keys and node not in ordered]
    if not sums:
        return keys
    homes = _Homes(graph, keys)
    for node in sums:
        homes.visit_summands(node)
    for node in reversed(sums):
        homes.visit_readers(node)
    return homes.keys


def _may_be_taken(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and is_gradient_sum(node) and not node.meta.get(_OF_OUTER_VALUE)


class _Homes:
    """Regions of nodes: candidates for sums from their summands (forwards), decided by their readers (backwards)."""

    def __init__(self, graph: torch.fx.Graph, keys: Mapping[torch.fx.Node, RegionKey]) -> None:
        self.keys = dict(keys)
        self._position = {node: i for i, node in enumerate(graph.nodes)}
        self._begin: dict[RegionKey, int] = {}
        for node, key in keys.items():
            self._begin[key] = min(self._position[node], self._begin.get(key, self._position[node]))
        self._possible: dict[torch.fx.Node, RegionKey] = {}
        self._regions: dict[torch.fx.Node, frozenset[RegionKey]] = {}

    def visit_summands(self, node: torch.fx.Node) -> None:
        summands = {source: self._possible.get(source, self._key_of(source)) for source in _ops(node.all_input_nodes)}
        for key in dict.fromkeys(key for key in summands.values() if key is not None):
            if all(home == key or self._passes_through(source, key) for source, home in summands.items()):
                self._possible[node] = key
        found: set[RegionKey] = set()
        for source, home in summands.items():
            found |= self._regions.get(source, frozenset() if home is None else {home})
        # Of all summands, through sums; more than two make no difference.
        self._regions[node] = frozenset(sorted(found, key=self._begin.__getitem__)[:2])

    def visit_readers(self, node: torch.fx.Node) -> None:
        readers = {self._key_of(reader) for reader in _ops(node.users)}
        possible = self._possible.get(node)
        if possible is not None and possible in readers:
            self.keys[node] = possible
        elif len(readers) == 1 and readers == self._regions[node]:
            self.keys[node] = next(iter(self._regions[node]))

    def _passes_through(self, node: torch.fx.Node, key: RegionKey) -> bool:
        early = self._position[node] < self._begin[key]
        return early and any(self._key_of(reader) == key for reader in node.users)

    def _key_of(self, node: torch.fx.Node) -> RegionKey | None:
        return self.keys.get(element_of(node) or node)


def _ops(nodes: Iterable[torch.fx.Node]) -> Iterator[torch.fx.Node]:
    return (node for node in nodes if node.op not in ("placeholder", "get_attr", "output"))


#: AOTAutograd's partitioners replace an RNG op that a checkpoint repeats with one of these, the state first or by name,
#: without ``meta["val"]`` (``functionalize_rng_ops``, torch 2.11 to 2.15). Remove this when they copy the original's
#: value.
_REPEATING = ("run_with_rng_state", "graphsafe_run_with_rng_state")


def describe_repeated_draws(graph: torch.fx.Graph) -> None:
    """Give ``meta["val"]`` to repeated RNG ops without it: regions that read them need shape and dtype."""
    for node in graph.nodes:
        if "val" in node.meta or str(node.target) not in _REPEATING:
            continue
        operator = next(part for part in node.args if is_op_overload(part))
        behind = node.args[node.args.index(operator) + 1 :]
        keywords = {key: value for key, value in node.kwargs.items() if key != "rng_state"}
        arguments, keywords = torch.fx.node.map_arg((behind, keywords), lambda argument: argument.meta["val"])
        mode = detect_fake_mode((arguments, keywords)) or current_fake_mode()
        if mode is not None:
            with mode:
                node.meta["val"] = operator(*arguments, **keywords)


_WRITING_ONCE_LOWERED = ("auto_functionalized", "triton_kernel_wrapper")
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


def _is_mergeable(node: torch.fx.Node, kept_apart: set[int | None]) -> bool:
    if node.op != "call_function" or not is_op_overload(node.target) or op_name(node.target) in _UNINITIALISED:
        return False
    if not isinstance(node.meta.get("val"), torch.Tensor) or effect_classes(node) or written_arguments(node):
        return False
    return all(storage_key(other.meta.get("val")) not in kept_apart for other in (node, *node.all_input_nodes))


def storages_kept_apart(graph: torch.fx.Graph) -> set[int | None]:
    """Return storages that are returned, and so must stay separate, or written to."""
    nodes = list(graph.output_node().all_input_nodes)
    for node in graph.nodes:
        nodes += written_arguments(node)
        # Inductor lowers these functional ops to writing ones, whose arguments must differ.
        if is_higher_order_op(node.target) and op_name(node.target).startswith(_WRITING_ONCE_LOWERED):
            nodes += node.all_input_nodes
    return {storage_key(node.meta.get("val")) for node in nodes} - {None}


def partitioner_for(name: str) -> Callable[..., Any]:
    """Return the ``default`` or the ``min_cut`` partitioner; neither moves an op out of its region."""
    function = partition_function(name)
    merges_ops = name == "min_cut"

    def partition(joint_module: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        annotate_lost_gradients(joint_module)
        mark_sums_of_outer_values(joint_module)
        pick_from_unused_tuples(joint_module.graph)
        if merges_ops:
            merge_common_subexpressions(joint_module.graph)
            joint_module.recompile()
        with without_states_of_checkpoints(), without_cse() if merges_ops else contextlib.nullcontext():
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
