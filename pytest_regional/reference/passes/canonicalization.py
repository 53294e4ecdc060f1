"""Canonicalization: views that change nothing are gone, and views of views are one view.

What a program can see stays: values bit for bit, strides, which results share memory with what, results by their
names, order edges, and the region of every op. Nothing is judged that tracing left no value of.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from pytest_regional._torch.region_compile import is_higher_order_op, storage_key
from pytest_regional.reference.cse import storages_kept_apart
from pytest_regional.reference.effects import bodies_of, written_arguments
from pytest_regional.reference.ordering.operator import dependencies_of, is_control_deps
from pytest_regional.reference.passes.version import OWN_CODE
from pytest_regional.reference.passes.views import (
    is_plainly_contiguous,
    permutation,
    same_layout,
    same_tensor,
    viewed,
    views_up_from,
)
from pytest_regional.reference.pipeline.graph_pass import DEFAULT_GRAPHS, Pass
from pytest_regional.reference.regions import read_region_keys

_aten = torch.ops.aten
_RESHAPES = (_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default)
_COPIES = (_aten._to_copy.default,)
# torch 2.15 traces ``detach`` as an alias.
_DETACH = (_aten.detach.default, _aten.alias.default)


def canonicalize(graph: torch.fx.Graph, *, detach: bool = True) -> int:
    """Remove from ``graph`` views and conversions that change nothing; return how many ops are gone.

    Gone are ``view``, ``expand``, ``slice``, ``alias`` and every other view that reads the same elements in the same
    places as what it views, directly or through other views (two transpositions); a ``_to_copy`` that converts nothing
    and whose memory nobody could tell apart; ``detach`` if asked. A reshape of a reshape and a permutation of a
    permutation, within one region, become one. ``clone`` stays, and so does a result of the graph: where it is the
    same as something farther up it becomes an ``alias`` of that. Bodies of higher-order operators are done, too.
    """
    return _Canonicalization(detach).run(graph)


@dataclass
class _Canonicalization:
    detach: bool
    done: set[int] = field(default_factory=set)

    def run(self, graph: torch.fx.Graph) -> int:
        one = _OneGraph(graph, self.detach)
        removed = one.run()
        for node in graph.nodes:
            if node.op == "call_function" and is_higher_order_op(node.target) and not is_control_deps(node):
                removed += sum(map(self._body, bodies_of(node)))
        return removed

    def _body(self, body: torch.fx.GraphModule) -> int:
        if id(body) in self.done:
            return 0
        self.done.add(id(body))
        removed = self.run(body.graph)
        body.recompile()  # An op that reads elsewhere is a change, too.
        return removed


class _OneGraph:
    """One graph, without the bodies in it."""

    def __init__(self, graph: torch.fx.Graph, detach: bool) -> None:
        self.graph = graph
        self.detach = detach
        self.regions: Mapping[torch.fx.Node, Hashable] = read_region_keys(graph)
        self.used = {node for node in graph.nodes if node.users}
        self.fixed = _fixed(graph)
        self.kept_apart = storages_kept_apart(graph)

    def run(self) -> int:
        for node in self.graph.nodes:
            self._simplify(node)
        removed = 0
        for node in reversed(self.graph.nodes):
            if not node.users and node in self.used and (node.target in _COPIES or viewed(node) is not None):
                self.graph.erase_node(node)
                removed += 1
        return removed

    def _simplify(self, node: torch.fx.Node) -> None:
        if node.target in _COPIES:
            self._simplify_copy(node)
            return
        source = viewed(node)
        if source is None or (node.target in _DETACH and not self.detach):
            return
        same = self._same_as(node)
        if same is None:
            self._merge(node, source)
        elif node not in self.fixed:
            node.replace_all_uses_with(same)
        elif same is not source:
            _read(node, _aten.alias.default, (same,))

    def _simplify_copy(self, node: torch.fx.Node) -> None:
        """Remove a conversion to what its argument is already, where nobody could tell two memories from one."""
        source, value = node.args[0], node.meta.get("val")
        assert isinstance(source, torch.fx.Node)
        other = source.meta.get("val")
        if node in self.fixed or node.kwargs.get("pin_memory") or not isinstance(value, torch.Tensor):
            return
        keys = (storage_key(value), storage_key(other))
        if None not in keys and not self.kept_apart.intersection(keys) and same_layout(value, other):
            node.replace_all_uses_with(source)

    def _same_as(self, node: torch.fx.Node) -> torch.fx.Node | None:
        """Return the node farthest up that ``node`` is the same as, through no ``detach`` that has to stay."""
        found, value = None, node.meta.get("val")
        for above in views_up_from(node):
            if same_tensor(value, above.meta.get("val")):
                found = above
            if above.target in _DETACH and not self.detach:
                break
        return found

    def _merge(self, node: torch.fx.Node, source: torch.fx.Node) -> None:
        """Let ``node``, a view of the view ``source``, look at what that looks at, where both are of one region."""
        above = [*itertools.islice(views_up_from(node), 2)]
        if len(above) < 2 or self.regions.get(node) != self.regions.get(source):
            return
        base, outer, inner = above[1], permutation(node), permutation(source)
        if outer is not None and inner is not None:
            _read(node, _aten.permute.default, (base, [inner[dim] for dim in outer]))
        elif _reshapes(node) and _reshapes(source) and is_plainly_contiguous(base.meta.get("val")):
            _read(node, node.target, (base, *node.args[1:]))


def _fixed(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Return the nodes that stand for more than a value: results, and what order edges wait for."""
    fixed = {*graph.output_node().all_input_nodes, *(other for node in graph.nodes for other in dependencies_of(node))}
    for node in reversed(graph.nodes):
        if node in fixed:  # An op that writes returns the very tensor that it wrote to.
            fixed.update(written_arguments(node))
    return fixed


def _reshapes(node: torch.fx.Node) -> bool:
    """Return whether ``node`` could have been made of whatever is contiguous and holds as many elements."""
    return node.target in _RESHAPES and is_plainly_contiguous(node.meta.get("val"))


def _read(node: torch.fx.Node, target: Any, args: tuple[Any, ...]) -> None:
    node.target, node.args, node.kwargs = target, args, {}


@dataclass(frozen=True)
class Canonicalization(Pass):
    """Views that change nothing are gone, and views of views are one view: see :func:`canonicalize`.

    A joint graph keeps its ``detach``: there it says where the program, or PyTorch, cut the gradient, and passes that
    match forward and backward may look for it. Everywhere else autograd is over.
    """

    name = "canonicalization"
    version = OWN_CODE
    graphs: tuple[str, ...] = DEFAULT_GRAPHS

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any] = (), *, graph: str = "forward") -> None:
        """Simplify the graph of ``gm``; whoever runs a pass compiles the module anew."""
        canonicalize(gm.graph, detach=graph != "joint")
