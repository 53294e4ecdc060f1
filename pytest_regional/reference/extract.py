"""Take the partitions of a plan out of a graph, in one linear pass that rewrites the outer graph.

A partition's own graph is written at first access: identical partitions share one compiled result and do not need
theirs. Attributes (constants, bodies of higher-order ops) are not members of partitions: a body is copied to each user,
a constant tensor becomes an input. Inside it would be lost when the compiled partition is stored: PyTorch's
``deserialize_bundled_cache_entry`` omits parameters and buffers of the module (2.11, 2.13, 2.15).
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.fx

from pytest_regional._torch.fx_graphs import (
    attribute,
    empty_like,
    is_graph_module,
    lazy_graph_module,
    region_mark,
    replace_graph,
)
from pytest_regional._torch.tracing import free_symbols, is_symbolic, plain_symbol
from pytest_regional.reference.effects import Edge
from pytest_regional.reference.ordering.edges import add_control_deps, as_dependencies
from pytest_regional.reference.partition import Partition, PartitionPlan, without_collections

NAME_PREFIX = "compiled_region_"


class RegionInput(NamedTuple):
    """An input of a region, with its source and metadata.

    ``source`` is a node of the partition's original graph, or None for a size that is passed along.
    """

    name: str
    source: torch.fx.Node | None
    meta: Mapping[str, Any]


@dataclass
class ExtractedRegion:
    """A partition, its boundary, and its call in the outer graph."""

    name: str
    partition: Partition
    call: torch.fx.Node
    inputs: list[RegionInput]
    results: tuple[torch.fx.Node, ...]
    attributes: Mapping[torch.fx.Node, Any] = field(default_factory=dict)
    order: tuple[tuple[int, int], ...] = ()
    """Positions in ``partition.nodes``: the first must run before the second without data flow."""

    @property
    def order_edges(self) -> tuple[Edge, ...]:
        """``order`` as nodes of ``module``."""
        ops = [node for node in self.module.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
        return tuple((ops[a], ops[b]) for a, b in self.order)

    @cached_property
    def module(self) -> torch.fx.GraphModule:
        """The partition as its own graph: one placeholder for each input, a tuple of the results."""
        return self._written()

    def rewritten(self) -> tuple[torch.fx.GraphModule, tuple[Edge, ...]]:
        """Replace the consumed ``module``; return the new one with the edges that it has to keep."""
        self.__dict__.pop("module", None)
        return self.module, self.order_edges

    def _written(self) -> torch.fx.GraphModule:
        graph = torch.fx.Graph()
        copies: dict[torch.fx.Node, torch.fx.Node] = {}
        for border in self.inputs:
            placeholder = graph.placeholder(border.name)
            placeholder.meta = dict(border.meta)
            if border.source is not None:
                copies[border.source] = placeholder

        def copy_of(source: torch.fx.Node) -> torch.fx.Node:
            if source not in copies:  # an attribute that is copied
                copies[source] = graph.node_copy(source)
            return copies[source]

        for node in self.partition.nodes:
            copies[node] = graph.node_copy(node, copy_of)
        output = graph.output(tuple(copies[node] for node in self.results))
        output.meta["val"] = tuple(node.meta.get("val") for node in self.results)
        attributes = {str(source.target): value for source, value in self.attributes.items()}
        module: torch.fx.GraphModule = lazy_graph_module(attributes, graph, self.name)
        return module


@without_collections()
def extract_partitions(
    gm: torch.fx.GraphModule, plan: PartitionPlan, edges: Iterable[Edge] = ()
) -> list[ExtractedRegion]:
    """Rewrite ``gm`` so that each partition of ``plan`` is one call; return the regions in execution order.

    ``edges`` are the regions' order besides data flow; the plan keeps those between partitions.

    The calls are ``call_module`` nodes without submodules: ``install_submodules`` makes them, or ``compile_regions``
    replaces them with calls of compiled code. The Python code of ``gm`` is stale.
    """
    if not plan.partitions:
        return []
    regions = _Rewriter(gm).rewrite(plan)
    _assign_order(regions, edges)
    return regions


def _assign_order(regions: Sequence[ExtractedRegion], edges: Iterable[Edge]) -> None:
    """Give each region the edges between two of its nodes."""
    edges = list(edges)
    if not edges:
        return
    homes = {node: (region, i) for region in regions for i, node in enumerate(region.partition.nodes)}
    orders: dict[str, list[tuple[int, int]]] = {region.name: [] for region in regions}
    for before, after in edges:
        if before in homes and after in homes and homes[before][0] is homes[after][0]:
            orders[homes[after][0].name].append((homes[before][1], homes[after][1]))
    for region in regions:
        region.order = tuple(orders[region.name])


def install_submodules(gm: torch.fx.GraphModule, regions: Iterable[ExtractedRegion]) -> None:
    """Give ``gm`` the regions as submodules that run eagerly, so that it is a valid module again."""
    for region in regions:
        if region.order:
            add_control_deps(region.module.graph, as_dependencies(region.order_edges))
        gm.add_submodule(region.name, region.module)
    gm.recompile()


class _Rewriter:
    def __init__(self, gm: torch.fx.GraphModule) -> None:
        self._gm = gm
        self._new = empty_like(gm)
        self._map: dict[torch.fx.Node, torch.fx.Node] = {}
        self._counts: Counter[str] = Counter()
        self._taken = set(dir(gm))

    def rewrite(self, plan: PartitionPlan) -> list[ExtractedRegion]:
        old = self._gm.graph
        regions = []
        for placeholder in old.find_nodes(op="placeholder"):
            self._copy(placeholder)
        for step in plan.steps:
            if isinstance(step, Partition):
                regions.append(self._extract(step))
            else:
                self._copy(step)
        self._copy(old.output_node())
        replace_graph(self._gm, self._new)
        return regions

    def _copy(self, node: torch.fx.Node) -> torch.fx.Node:
        if node not in self._map:
            self._map[node] = self._new.node_copy(node, self._outer)
        return self._map[node]

    def _outer(self, node: torch.fx.Node) -> torch.fx.Node:
        """Return the outer graph's node for ``node``; attributes are fetched at their first use."""
        return self._copy(node) if node.op == "get_attr" else self._map[node]

    def _extract(self, partition: Partition) -> ExtractedRegion:
        members = set(partition.nodes)
        sources = dict.fromkeys(
            source for node in partition.nodes for source in node.all_input_nodes if source not in members
        )
        attributes = {source: self._attribute(source) for source in sources if self._travels(source)}
        inputs = [self._input(source) for source in sources if source not in attributes]
        results = tuple(node for node in partition.nodes if any(user not in members for user in node.users))
        call = self._call(partition, inputs, results)
        return ExtractedRegion(str(call.target), partition, call, inputs, results, attributes)

    def _attribute(self, source: torch.fx.Node) -> Any:
        return attribute(self._gm, str(source.target))

    def _travels(self, source: torch.fx.Node) -> bool:
        return source.op == "get_attr" and not isinstance(self._attribute(source), torch.Tensor)

    def _input(self, source: torch.fx.Node) -> RegionInput:
        """Keep the metadata; a constant without a value in the trace is its own value."""
        meta = source.meta
        if "val" not in meta and source.op == "get_attr":
            meta = {**meta, "val": self._attribute(source)}
        return RegionInput(source.name, source, meta)

    def _call(
        self, partition: Partition, inputs: Iterable[RegionInput], results: Iterable[torch.fx.Node]
    ) -> torch.fx.Node:
        name = self._fresh_name(partition)
        arguments = tuple(self._outer(border.source) for border in inputs if border.source is not None)
        # Arguments are set afterwards: FX searches given arguments for symbols, which takes half of the time.
        call = self._new.create_node("call_module", name, name=name)
        call.args = arguments
        # A sum of gradients, which has no annotation, may come first.
        meta = next((node for node in partition.nodes if region_mark(node)[0]), partition.nodes[0]).meta
        call.meta = {key: meta[key] for key in ("stack_trace", "custom") if key in meta}
        call.meta["val"] = tuple(node.meta.get("val") for node in results)
        for index, result in enumerate(results):
            element = self._new.create_node("call_function", operator.getitem, name=result.name, type_expr=result.type)
            element.args = (call, index)
            element.meta = dict(result.meta)
            self._map[result] = element
        return call

    def _fresh_name(self, partition: Partition) -> str:
        stem = NAME_PREFIX + partition.key.identifier
        while True:
            name = f"{stem}_{self._counts[stem]}"
            self._counts[stem] += 1
            if name not in self._taken:
                return name


def bodies_inside(regions: Iterable[ExtractedRegion]) -> set[int]:
    """Return the identities of the graph modules inside the extracted regions."""
    values = (value for region in regions for value in region.attributes.values())
    return {id(value) for value in values if is_graph_module(value)}


@dataclass(frozen=True)
class _Bearer:
    """A value of the outer graph that is a symbol, or has one as the size of a dimension."""

    node: torch.fx.Node
    dimension: int | None
    value: Any


def pass_missing_symbols(gm: torch.fx.GraphModule, regions: Sequence[ExtractedRegion]) -> None:
    """Add to ``regions`` and their calls in ``gm`` the symbols that none of their inputs provides."""
    calls = {region.call: region for region in regions}
    bearers: dict[str, _Bearer] = {}
    made: dict[str, torch.fx.Node] = {}
    for node in list(gm.graph.nodes):
        if node in calls:
            for symbol in _missing_symbols(calls[node]):
                if symbol in bearers:
                    _pass_symbol(calls[node], symbol, bearers[symbol], made)
        for symbol, bearer in _borne_by(node):
            bearers.setdefault(symbol, bearer)


def nodes_of_symbols(
    graph: torch.fx.Graph, symbols: Collection[str], bearers: Iterable[torch.fx.Node]
) -> dict[str, torch.fx.Node]:
    """Return a node for each of ``symbols`` of ``bearers``; sizes are computed at the graph's insertion point."""
    found: dict[str, torch.fx.Node] = {}
    for node in bearers:
        for symbol, bearer in _borne_by(node):
            if symbol in symbols and symbol not in found:
                found[symbol] = node if bearer.dimension is None else _size_node(graph, bearer)
    return found


def _missing_symbols(region: ExtractedRegion) -> list[str]:
    values = [border.meta.get("val") for border in region.inputs]
    bound = {symbol for value in values for symbol, _, _ in _plain_sizes(value)}
    needed = {str(symbol) for value in values if value is not None for symbol in free_symbols(value)}
    return sorted(needed - bound)


def _borne_by(node: torch.fx.Node) -> Iterator[tuple[str, _Bearer]]:
    if node.op in ("placeholder", "call_function"):
        for symbol, dimension, value in _plain_sizes(node.meta.get("val")):
            yield symbol, _Bearer(node, dimension, value)


def _plain_sizes(value: Any) -> Iterator[tuple[str, int | None, Any]]:
    """Yield the symbols that ``value`` is, or has as a size, with the dimension."""
    sizes: Mapping[int | None, Any] = {}
    if is_symbolic(value):
        sizes = {None: value}
    elif isinstance(value, torch.Tensor):
        sizes = dict(enumerate(value.shape))
    for dimension, size in sizes.items():
        symbol = plain_symbol(size)
        if symbol is not None:
            yield symbol, dimension, size


def _pass_symbol(region: ExtractedRegion, symbol: str, bearer: _Bearer, made: dict[str, torch.fx.Node]) -> None:
    call = region.call
    if symbol not in made:
        with call.graph.inserting_before(call):
            made[symbol] = bearer.node if bearer.dimension is None else _size_node(call.graph, bearer)
    call.args = (*call.args, made[symbol])
    region.inputs.append(RegionInput(f"size_{symbol}", None, {"val": bearer.value}))


def _size_node(graph: torch.fx.Graph, bearer: _Bearer) -> torch.fx.Node:
    size = graph.call_function(torch.ops.aten.sym_size.int, (bearer.node, bearer.dimension))
    size.meta["val"] = bearer.value
    return size
