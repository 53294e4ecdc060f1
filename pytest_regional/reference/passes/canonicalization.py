"""Canonicalization, which removes and merges views, and dead code elimination, which removes unused ops.

Visible behaviour stays: values bit for bit, strides, shared memory of results, names of results, order edges, and the
region of every op. Nodes without a traced value are not changed.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.fx

from pytest_regional._torch.fx_graphs import bodies_of, is_graph_module
from pytest_regional._torch.operators import (
    hides_a_view,
    is_higher_order_op,
    is_op_overload,
    op_name,
    returns_nothing,
    schema_of,
)
from pytest_regional._torch.tracing import known_equal, storage_key
from pytest_regional.reference.effects import effect_classes, written_arguments
from pytest_regional.reference.gradients import storages_kept_apart
from pytest_regional.reference.ordering.edges import dependencies_of, is_control_deps
from pytest_regional.reference.pass_protocol import DEFAULT_GRAPHS, OWN_CODE, Pass
from pytest_regional.reference.regions import read_region_keys

# A chain of views longer than this is processed in pieces.
_REACH = 32
_aten = torch.ops.aten


def viewed(node: torch.fx.Node) -> torch.fx.Node | None:
    """Return the node that ``node`` is a view of, or None if it is no view."""
    if node.op != "call_function" or not is_op_overload(node.target) or not node.args:
        return None
    source = node.args[0]
    if not isinstance(source, torch.fx.Node) or not (hides_a_view(node.target) or _is_view_op(node.target)):
        return None
    key = storage_key(node.meta.get("val"))
    return source if key is not None and key == storage_key(source.meta.get("val")) else None


@cache
def _is_view_op(target: Any) -> bool:
    """Return whether ``target`` has one result, which by its schema may alias its first argument."""
    schema = schema_of(target)
    if len(schema.returns) != 1 or not schema.arguments or schema.is_mutable:
        return False
    result, argument = schema.returns[0].alias_info, schema.arguments[0].alias_info
    return result is not None and argument is not None and not result.is_write


def views_up_from(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Yield the base of ``node``, the base of that, and so on, while their metadata is valid."""
    current: torch.fx.Node | None = node
    for _ in range(_REACH):
        assert current is not None
        current = viewed(current)
        if current is None:
            return
        # Behind ``t_``, ``resize_``, ``set_`` and similar its traced value is wrong for later users.
        if any(_changes_metadata(user.target) for user in current.users):
            return
        yield current


def _changes_metadata(target: Any) -> bool:
    if not is_op_overload(target) or not schema_of(target).is_mutable:
        return False
    return torch.Tag.inplace_view in target.tags or op_name(target).startswith(("resize_", "set_", "resize_as_"))


def same_tensor(first: Any, second: Any) -> bool:
    """Return whether two (fake) tensors of one storage have the same elements in the same places."""
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return False
    if storage_key(first) != storage_key(second) or not same_layout(first, second):
        return False
    return known_equal(first.storage_offset(), second.storage_offset())


def same_layout(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two tensors differ only in their memory."""
    if first.layout is not torch.strided or second.layout is not torch.strided or first.dim() != second.dim():
        return False
    kinds = ((one.dtype, one.device, one.is_conj(), one.is_neg(), type(one)) for one in (first, second))
    sizes = zip((*first.shape, *first.stride()), (*second.shape, *second.stride()), strict=True)
    return next(kinds) == next(kinds) and all(known_equal(*pair) for pair in sizes)


def is_plainly_contiguous(value: Any) -> bool:
    """Return whether strides are the products of the following sizes, even those of single elements."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    expected: Any = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if not known_equal(stride, expected):
            return False
        expected = expected * size
    return True


def permutation(node: torch.fx.Node) -> tuple[int, ...] | None:
    """Return the argument's dimension for each dimension of ``node``, or None if it does not permute."""
    value, target = node.meta.get("val"), node.target
    if not isinstance(value, torch.Tensor) or node.kwargs:
        return None
    rank = value.dim()
    if target is _aten.t.default:
        return (1, 0) if rank == 2 else tuple(range(rank))
    if target is _aten.transpose.int and rank:
        first, second = (int(dim) % rank for dim in node.args[1:3])
        swapped = {first: second, second: first}
        return tuple(swapped.get(dim, dim) for dim in range(rank))
    if target is _aten.permute.default:
        return tuple(int(dim) % rank for dim in node.args[1])
    return None


_RESHAPES = (_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default)
_COPIES = (_aten._to_copy.default,)
# torch 2.15 traces ``detach`` as an alias.
_DETACH = (_aten.detach.default, _aten.alias.default)


def canonicalize(graph: torch.fx.Graph, *, detach: bool = True) -> int:
    """Remove views and conversions without effect from ``graph``; return how many ops were removed.

    Removes ``view``, ``expand``, ``slice``, ``alias`` and every other view that reads the same elements in the same
    places as its base, directly or through other views (two transpositions); a ``_to_copy`` that converts nothing and
    whose memory cannot be distinguished; ``detach`` if requested. A reshape of a reshape and a permutation of a
    permutation, within one region, become one. ``clone`` stays, and so does a result of the graph: if it equals an
    earlier node it becomes an ``alias`` of that. Bodies of higher-order operators are included.
    """
    return _canonicalize(graph, detach, set())


def _canonicalize(graph: torch.fx.Graph, detach: bool, done: set[int]) -> int:
    removed = _OneGraph(graph, detach).run()
    for node in graph.nodes:
        if node.op == "call_function" and is_higher_order_op(node.target) and not is_control_deps(node):
            for body in bodies_of(node):
                if id(body) not in done:
                    done.add(id(body))
                    removed += _canonicalize(body.graph, detach, done)
                    body.recompile()  # a changed argument of an op is a change, too
    return removed


class _OneGraph:
    """One graph, without its bodies."""

    def __init__(self, graph: torch.fx.Graph, detach: bool) -> None:
        self.graph = graph
        self.detach = detach
        self.regions: Mapping[torch.fx.Node, Hashable] = read_region_keys(graph)
        self.used = {node for node in graph.nodes if node.users}
        self.kept_apart = storages_kept_apart(graph)
        # More than a value: results, and dependencies of order edges.
        self.fixed = set(graph.output_node().all_input_nodes)
        self.fixed.update(other for node in graph.nodes for other in dependencies_of(node))
        for node in reversed(graph.nodes):
            if node in self.fixed:  # an op that writes returns the tensor that it wrote to
                self.fixed.update(written_arguments(node))

    def run(self) -> int:
        for node in self.graph.nodes:
            source, value = viewed(node), node.meta.get("val")
            if node.target in _COPIES:
                self._simplify_copy(node, node.args[0], value)
            elif source is not None and (self.detach or node.target not in _DETACH):
                same = None  # the earliest node that ``node`` equals, through no ``detach`` that must stay
                for above in views_up_from(node):
                    if same_tensor(value, above.meta.get("val")):
                        same = above
                    if above.target in _DETACH and not self.detach:
                        break
                if same is None:
                    self._merge(node, source)
                elif node not in self.fixed:
                    node.replace_all_uses_with(same)
                elif same is not source:
                    node.target, node.args, node.kwargs = _aten.alias.default, (same,), {}
        removed = 0
        for node in reversed(self.graph.nodes):
            if not node.users and node in self.used and (node.target in _COPIES or viewed(node) is not None):
                self.graph.erase_node(node)
                removed += 1
        return removed

    def _simplify_copy(self, node: torch.fx.Node, source: torch.fx.Node, value: Any) -> None:
        """Remove a conversion without effect, if the two memories cannot be distinguished."""
        other = source.meta.get("val")
        if node in self.fixed or node.kwargs.get("pin_memory") or not isinstance(value, torch.Tensor):
            return
        keys = (storage_key(value), storage_key(other))
        if None not in keys and not self.kept_apart.intersection(keys) and same_layout(value, other):
            node.replace_all_uses_with(source)

    def _merge(self, node: torch.fx.Node, source: torch.fx.Node) -> None:
        """Make ``node``, a view of the view ``source``, a view of that one's base, if both are in one region."""
        above = [*itertools.islice(views_up_from(node), 2)]
        if len(above) < 2 or self.regions.get(node) != self.regions.get(source):
            return
        base, outer, inner = above[1], permutation(node), permutation(source)
        if outer is not None and inner is not None:
            dims = [inner[dim] for dim in outer]
            node.target, node.args, node.kwargs = _aten.permute.default, (base, dims), {}
        elif _reshapes(node) and _reshapes(source) and is_plainly_contiguous(base.meta.get("val")):
            node.args, node.kwargs = (base, *node.args[1:]), {}


def _reshapes(node: torch.fx.Node) -> bool:
    """Return whether ``node`` could be made from any contiguous tensor with as many elements."""
    return node.target in _RESHAPES and is_plainly_contiguous(node.meta.get("val"))


@dataclass(frozen=True)
class Canonicalization(Pass):
    """Removes views without effect, and merges views of views: see :func:`canonicalize`.

    A joint graph keeps its ``detach``, which shows where the program or PyTorch cut the gradient; passes that match
    forward and backward may search for it. Other graphs are not differentiated any more.
    """

    name = "canonicalization"
    version = OWN_CODE
    graphs: tuple[str, ...] = DEFAULT_GRAPHS

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any] = (), *, graph: str = "forward") -> None:
        """Simplify the graph of ``gm``; the caller recompiles the module."""
        canonicalize(gm.graph, detach=graph != "joint")


# They only run their bodies; operators that are not listed may have any effect.
_AS_PURE_AS_THEIR_BODIES = frozenset(
    (
        "associative_scan", "auto_functionalized", "auto_functionalized_v2", "autograd_function_apply", "cond",
        "custom_function_call", "dynamo_bypassing_wrapper", "flat_apply", "flex_attention", "flex_attention_backward",
        "foreach_map", "hints_wrapper", "invoke_quant", "invoke_quant_packed", "invoke_subgraph", "local_map_hop",
        "map_impl", "out_dtype", "scan", "strict_mode", "tag_activation_checkpoint",
        "triton_kernel_wrapper_functional", "while_loop", "while_loop_stack_output", "wrap",
        "wrap_activation_checkpoint", "wrap_with_autocast", "wrap_with_set_grad_enabled",
    )
)  # fmt: skip
_PURE_MODULES = ("_operator", "operator", "math", "builtins")
_CHECKS = ("assert", "sym_constrain_range", "_check")


def eliminate_dead_code(graph: torch.fx.Graph) -> int:
    """Remove the ops of ``graph`` with unused results and no effect; return how many.

    Kept are RNG ops, writes, collectives and their waits, order edges, operators without a result, those with a
    registered effect, assertions, and calls of unknown functions. Inputs stay. Bodies of higher-order operators are
    cleared, too. Linear in nodes plus edges; a second application removes nothing.
    """
    return _Elimination().run(graph)


class _Elimination:
    """One application: each body is analysed once and cleared once."""

    def __init__(self) -> None:
        self._impure: dict[int, bool] = {}
        self._cleared: set[int] = set()

    def run(self, graph: torch.fx.Graph) -> int:
        removed, unread = 0, []
        callers = {user for node in graph.nodes if node.op == "get_attr" for user in node.users}
        for node in reversed(graph.nodes):
            if node.users or self.has_effect(node):
                removed += sum(map(self._clear, bodies_of(node) if node in callers else ()))
                continue
            graph.erase_node(node)
            removed += node.op != "get_attr"
            unread += [str(node.target)] if node.op == "get_attr" else []
        _remove_bodies(graph, unread)
        return removed

    def _clear(self, body: torch.fx.GraphModule) -> int:
        if id(body) in self._cleared:
            return 0
        self._cleared.add(id(body))
        removed = self.run(body.graph)
        if removed:
            body.recompile()
        return removed

    def has_effect(self, node: torch.fx.Node) -> bool:
        """Return whether ``node`` must stay even if its result is unused."""
        target, name = node.target, op_name(node.target)
        if node.op == "get_attr":
            return False
        if node.op == "call_module":
            owner = node.graph.owning_module
            module = owner.get_submodule(target) if owner is not None else None
            return not is_graph_module(module) or self._is_impure(module)
        if node.op != "call_function":
            return True
        if effect_classes(node) or written_arguments(node) or any(word in name for word in _CHECKS):
            return True
        if is_op_overload(target):
            return returns_nothing(target)
        if is_higher_order_op(target):
            if name not in _AS_PURE_AS_THEIR_BODIES or any(map(self._is_impure, bodies_of(node))):
                return True
            # By ``auto_functionalized`` and similar ones.
            wrapped = node.args[0] if node.args else node.kwargs.get("op")
            if not is_op_overload(wrapped):
                return False
            probe = torch.fx.Graph().call_function(wrapped)
            return bool(torch.Tag.nondeterministic_seeded in wrapped.tags or effect_classes(probe))
        # Other functions have none if they only compute with numbers or pick an element.
        module = getattr(target, "__module__", None)
        if target is print or target is operator.setitem:
            return True
        if module in _PURE_MODULES or getattr(math, name, None) is target:
            return False
        return not (name.startswith("sym_") and str(module).split(".")[0] == "torch")

    def _is_impure(self, body: Any) -> bool:
        if id(body) not in self._impure:
            inner = (node for node in body.graph.nodes if node.op not in ("placeholder", "output"))
            self._impure[id(body)] = any(map(self.has_effect, inner))
        return self._impure[id(body)]


def _remove_bodies(graph: torch.fx.Graph, unread: Sequence[str]) -> None:
    """Remove the bodies with these names from the owner, unless the graph still uses them."""
    owner = graph.owning_module
    if owner is None or not unread:
        return
    meant = {str(node.target) for node in graph.nodes if node.op in ("get_attr", "call_module")}
    for name in dict.fromkeys(unread):
        if name not in meant and "." not in name and is_graph_module(getattr(owner, name, None)):
            delattr(owner, name)


@dataclass(frozen=True)
class DeadCodeElimination(Pass):
    """Removes ops with unused results and no effect: see :func:`eliminate_dead_code`."""

    name = "dead_code_elimination"
    version = OWN_CODE
    graphs: tuple[str, ...] = DEFAULT_GRAPHS

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any] = ()) -> None:
        """Clear the graph of ``gm``; the caller recompiles the module."""
        eliminate_dead_code(gm.graph)
