"""``annotate_ops`` marks ops by operator; ``AddControlDeps`` and ``OverlapCollectives`` are passes as well.

It writes the annotations of ``torch.fx.traceback.annotate`` and ``pytest_regional.region``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.fx

from pytest_regional._base.errors import RegionalWarning
from pytest_regional._base.text import plural
from pytest_regional._torch.fx_graphs import (
    ANNOTATION,
    REGION_CONFIGS,
    REGION_ID,
    bodies_of,
    is_backward_node,
    is_gradient_sum,
    region_mark,
)
from pytest_regional._torch.operators import is_higher_order_op, is_op_overload, is_op_packet
from pytest_regional.reference.ordering import AddedOrder, add_control_deps
from pytest_regional.reference.ordering.edges import is_control_deps
from pytest_regional.reference.overlap import OverlapPlan, overlap_collectives
from pytest_regional.reference.overlap.program import Cost, compute_cost
from pytest_regional.reference.pass_protocol import DEFAULT_GRAPHS, GRAPH_KINDS, OWN_CODE, Pass, PipelineError
from pytest_regional.reference.regions import called_name, checked_settings, freeze

# Their bodies are ordinary graphs; those of others are functions of single elements.
_RUN_GRAPHS = ("cond", "while_loop", "invoke_subgraph", "tag_activation_checkpoint", "autograd_function_apply", "wrap")

Predicate = Callable[[torch.fx.Node], bool]


class PassMatchWarning(RegionalWarning):
    """A pass matched no op, so it had no effect."""


@dataclass(frozen=True)
class Annotated:
    """The result of :func:`annotate_matching`.

    Attributes:
        matched: the matching ops, including backward ops by name.
        gradients: the backward nodes of matched forward ops.
        kept: those of either that keep an earlier annotation.
    """

    matched: tuple[torch.fx.Node, ...] = ()
    gradients: tuple[torch.fx.Node, ...] = ()
    kept: tuple[torch.fx.Node, ...] = ()


def annotate_matching(
    graph: torch.fx.Graph,
    target: Any,
    *,
    region: str | int | None = None,
    configs: Mapping[str, Any] | None = None,
    override: bool = False,
) -> Annotated:
    """Mark the ops of ``graph`` that match ``target``, and on a joint graph their backward nodes.

    Args:
        graph: an ATen graph; changed in place, bodies of higher-order operators included.
        target: an op overload or packet, a higher-order operator, a name of one (``"aten.mm"``,
            ``"flex_attention"``), a predicate on nodes, or a list of these.
        region: id of the region; by default the default region.
        configs: Inductor configuration of the region.
        override: whether to replace earlier marks of ops; otherwise they keep them.

    Raises:
        TypeError: a target that is none of these.
        RegionConfigError: a configuration that Inductor does not have.
    """
    mark = mark_for(region, configs)
    wanted = matcher(target)
    nodes = list(_nodes(graph, set()))
    matched = dict.fromkeys(node for node in nodes if wanted(node))
    # Their backward nodes have the same autograd numbers. A number belongs to the first forward op with it, as where
    # PyTorch copies annotations.
    forward: dict[Any, torch.fx.Node] = {}
    for node in nodes:
        if "seq_nr" in node.meta and not is_backward_node(node):
            forward.setdefault(node.meta["seq_nr"], node)
    backward = (node for node in nodes if is_backward_node(node) and not is_gradient_sum(node) and node not in matched)
    gradients = [node for node in backward if forward.get(node.meta.get("seq_nr")) in matched]
    kept = []
    for node in (*matched, *gradients):
        is_marked, earlier = region_mark(node)
        if is_marked and not override and freeze(earlier) != freeze(mark):
            kept.append(node)
        else:
            custom = node.meta.get("custom")
            node.meta["custom"] = {**(custom if isinstance(custom, dict) else {}), ANNOTATION: dict(mark)}
    return Annotated(tuple(matched), tuple(gradients), tuple(kept))


def mark_for(region: str | int | None, configs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the annotation for ``region``.

    Raises:
        RegionConfigError: a configuration that Inductor does not have.
    """
    mark: dict[str, Any] = {} if region is None else {REGION_ID: region}
    if configs is not None:
        mark[REGION_CONFIGS] = checked_settings(configs, str(region or "default"))
    return mark


def _nodes(graph: torch.fx.Graph, seen: set[int]) -> Iterator[torch.fx.Node]:
    """Yield the ops of ``graph``, and of the bodies in it whose ops can be marked."""
    for node in graph.nodes:
        if node.op in ("call_function", "call_method", "call_module"):
            yield node
            for body in bodies_of(node) if called_name(node).startswith(_RUN_GRAPHS) else ():
                if id(body) not in seen:
                    seen.add(id(body))
                    yield from _nodes(body.graph, seen)


def matcher(target: Any) -> Predicate:
    """Return a predicate on nodes for a target of ``annotate_ops``.

    Raises:
        TypeError: an invalid target.
    """
    if isinstance(target, (list, tuple, set, frozenset)):
        each = [matcher(one) for one in target]
        return lambda node: any(one(node) for one in each)
    if isinstance(target, str):
        return lambda node: target in _names(node)
    if is_op_overload(target):
        return lambda node: _called(node) is target
    if is_op_packet(target):
        return lambda node: getattr(_called(node), "overloadpacket", None) is target
    if is_higher_order_op(target):
        return lambda node: target.name() in _names(node)
    public = _higher_order_op_behind(target)
    if public is not None:
        return matcher(public)
    # A function like ``torch.mm`` is no predicate; ATen graphs have other names for those.
    is_of_torch = str(getattr(target, "__module__", None) or "torch").split(".")[0] == "torch"
    if callable(target) and not isinstance(target, type) and not is_of_torch:
        return lambda node: bool(target(node))
    raise TypeError(
        f"annotate_ops cannot match by {target!r}: give an op such as torch.ops.aten.mm, a higher-order operator, a "
        f"name such as 'aten.mm' or 'flex_attention', a function of a node, or a list of these."
    )


def _higher_order_op_behind(function: Any) -> str | None:
    """Return the operator in graphs for the user's function ``flex_attention``."""
    module = getattr(function, "__module__", None)
    return "flex_attention" if module == "torch.nn.attention.flex_attention" else None


def _called(node: torch.fx.Node) -> Any:
    """Return the call of ``node``; for an order edge, the op in its body."""
    if not is_control_deps(node):
        return node.target
    inner = (one.target for body in bodies_of(node)[:1] for one in body.graph.nodes if one.op == "call_function")
    return next(inner, node.target)


def _names(node: torch.fx.Node) -> tuple[str, ...]:
    target = _called(node)
    if is_op_overload(target):
        return str(target), str(target.overloadpacket)
    if is_higher_order_op(target):
        name = str(target.name())
        return name, name.removesuffix("_backward"), f"higher_order.{name}"
    return (called_name(node),)


@dataclass(frozen=True, eq=False)
class AnnotateOps(Pass):
    """Marks ops by operator, made by :func:`annotate_ops`.

    Attributes:
        done: the result of the latest run on each kind of graph.
    """

    target: Any
    region: str | int | None = None
    configs: Mapping[str, Any] | None = None
    override: bool = False
    required: bool = False
    identity: Hashable | None = None
    name: str = "annotate_ops"
    graphs: tuple[str, ...] = GRAPH_KINDS
    done: dict[str, Annotated] = field(default_factory=dict, repr=False)
    _joint: list[str] = field(default_factory=list, init=False, repr=False)

    def uuid(self) -> Hashable | None:
        """Return the settings; None for a predicate without ``identity``."""
        what = identity_of(self.target) if self.identity is None else ("identity", self.identity)
        if what is None:
            return None
        return (self.name, OWN_CODE, what, freeze(mark_for(self.region, self.configs)), self.override)

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any] = (), *, graph: str = "forward") -> None:
        """Mark the ops of ``gm``; the result is ``done[graph]``.

        Raises:
            PipelineError: no op matches, on a graph where a match is ``required``.
        """
        done = annotate_matching(
            gm.graph, self.target, region=self.region, configs=self.configs, override=self.override
        )
        self.done[graph] = done
        if graph == "joint":
            self._joint.append(graph)
        elif graph == "forward" and self._joint:
            self._joint.clear()
            return  # no match was reported for the joint graph
        # A backward may contain none of the forward's ops, and their gradients were marked before.
        if done.matched or (graph == "backward" and self.graphs != ("backward",)):
            return
        target = self.target
        shown = repr(target) if isinstance(target, str) else str(getattr(target, "__qualname__", target))
        names = dict.fromkeys(name for node in _nodes(gm.graph, set()) for name in _names(node)[:1])
        message = (
            f"pass {self.name!r} matched no op of the {graph} graph by {shown}: nothing is marked for "
            f"region {self.region!r}. The ops there: {', '.join(names) or 'none'}."
        )
        if self.required:
            raise PipelineError(message)
        warnings.warn(message, PassMatchWarning, stacklevel=2)

    def summary(self, graph: str) -> str:
        """Return the report's text: how many ops were marked, and how many kept their mark."""
        done = self.done.get(graph, Annotated())
        parts = [f"{plural(len(done.matched), 'op')} matched"]
        parts += [f"{plural(len(done.gradients), 'gradient op')}"] if done.gradients else []
        return ", ".join(parts + ([f"{len(done.kept)} marked otherwise"] if done.kept else []))


def annotate_ops(
    target: Any,
    region: str | int | None = None,
    configs: Mapping[str, Any] | None = None,
    *,
    override: bool = False,
    required: bool = False,
    identity: Hashable | None = None,
    name: str | None = None,
    graphs: tuple[str, ...] = GRAPH_KINDS,
) -> AnnotateOps:
    """Return a pass that marks the ops that match ``target`` for compilation, with their backward ops.

    Args:
        target: an op overload or packet, a higher-order operator, a name of one (``"aten.mm"``, ``"flex_attention"``),
            ``torch.nn.attention.flex_attention.flex_attention``, a predicate on nodes, or a list of these.
        region: id of the region; by default the default region.
        configs: Inductor configuration of the region.
        override: whether to replace marks from the program; otherwise ops keep them.
        required: whether no match is an error, not a warning.
        identity: identifies a predicate to a cache; without it a pass with a predicate has no uuid.
        name: name of the pass; ``annotate_ops``, or with a region ``annotate_ops(region)``.
        graphs: the graphs to run on.

    Raises:
        TypeError: an invalid target.
        RegionConfigError: a configuration that Inductor does not have.
    """
    matcher(target)
    mark_for(region, configs)
    chosen = name or ("annotate_ops" if region is None else f"annotate_ops({region})")
    frozen = None if configs is None else dict(configs)
    return AnnotateOps(target, region, frozen, override, required, identity, chosen, graphs)


def identity_of(target: Any) -> Hashable | None:
    """Return the identity of ``target`` in every process, or None for a predicate."""
    if isinstance(target, (list, tuple, set, frozenset)):
        parts = [identity_of(one) for one in target]
        return None if None in parts else ("any of", *sorted(map(repr, parts)))
    if isinstance(target, str):
        return target
    if is_op_overload(target) or is_op_packet(target):
        return type(target).__name__, str(target)
    return str(target.name()) if is_higher_order_op(target) else _higher_order_op_behind(target)


Edges = Callable[[torch.fx.Graph], Mapping[torch.fx.Node, Iterable[torch.fx.Node]]]


@dataclass(frozen=True, eq=False)
class AddControlDeps(Pass):
    """Adds order edges: :func:`~pytest_regional.reference.ordering.add_control_deps` as a pass.

    Attributes:
        edges: called with the graph; returns which nodes wait for which, ``{node: [nodes]}``, or nothing to add.
        identity: identifies ``edges`` to a cache; without it the pass has no uuid.
        done: the result of the latest run on each kind of graph.
    """

    edges: Edges
    identity: Hashable | None = None
    name: str = "add_control_deps"
    graphs: tuple[str, ...] = DEFAULT_GRAPHS
    done: dict[str, AddedOrder] = field(default_factory=dict, repr=False)

    def uuid(self) -> Hashable | None:
        """Return name, code and identity."""
        return None if self.identity is None else (self.name, OWN_CODE, self.identity)

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any] = (), *, graph: str = "forward") -> None:
        """Add the edges to the graph of ``gm``; edges that hold already cost nothing."""
        wanted = self.edges(gm.graph)
        self.done[graph] = add_control_deps(gm.graph, wanted) if wanted else AddedOrder()

    def summary(self, graph: str) -> str:
        """Return the report's text."""
        done = self.done.get(graph, AddedOrder())
        return f"{plural(len(done.added), 'edge')} added, {len(done.implied)} held already"


@dataclass(frozen=True, eq=False)
class OverlapCollectives(Pass):
    """Hides collectives behind compute: :func:`~pytest_regional.reference.overlap.overlap_collectives` as a pass.

    Attributes:
        memory_bound: as there, like the next two.
        in_flight: as there.
        cost: as there.
        identity: identifies a custom ``cost`` to a cache; without it there is no uuid then.
        plans: the plan of the latest run on each kind of graph.
    """

    memory_bound: int | float | None = None
    in_flight: int | None = None
    cost: Cost = compute_cost
    identity: Hashable | None = None
    name: str = "overlap_collectives"
    graphs: tuple[str, ...] = DEFAULT_GRAPHS
    plans: dict[str, OverlapPlan] = field(default_factory=dict, repr=False)

    def uuid(self) -> Hashable | None:
        """Return name, code and settings."""
        if self.cost is not compute_cost and self.identity is None:
            return None
        return self.name, OWN_CODE, self.memory_bound, self.in_flight, self.identity

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any] = (), *, graph: str = "forward") -> None:
        """Move and pin the collectives of the graph of ``gm``; the plan is ``plans[graph]``."""
        self.plans[graph] = overlap_collectives(
            gm.graph, memory_bound=self.memory_bound, in_flight=self.in_flight, cost=self.cost
        )

    def summary(self, graph: str) -> str:
        """Return the report's text."""
        plan = self.plans.get(graph, OverlapPlan())
        return f"{plural(len(plan.collectives), 'collective')}, {plural(len(plan.edges), 'edge')} added"
