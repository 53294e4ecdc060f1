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
from pytest_regional._torch.tracing import free_symbols, plain_symbol
from pytest_regional.reference.effects import Edge
from pytest_regional.reference.ordering.edges import add_control_deps, as_dependencies
from pytest_regional.reference.partition import Partition, PartitionPlan, without_collections
from pytest_regional.reference.regions import RegionKey

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
    """A partition, its boundary, and its call in the outer graph: a compiler's input for one region."""

    name: str
    partition: Partition
    call: torch.fx.Node
    borders: list[RegionInput]
    results: tuple[torch.fx.Node, ...]
    attributes: Mapping[torch.fx.Node, Any] = field(default_factory=dict)
    positions: tuple[tuple[int, int], ...] = ()
    """Positions in ``partition.nodes``: the first must run before the second without data flow."""

    @property
    def key(self) -> RegionKey:
        """The region key: id and configs."""
        return self.partition.key

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The (fake) values of the inputs."""
        return tuple(border.meta["val"] for border in self.borders)

    @property
    def order(self) -> tuple[Edge, ...]:
        """Pairs ``(before, after)`` of nodes of ``module`` that must run in this order without data flow."""
        ops = [node for node in self.module.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
        return tuple((ops[a], ops[b]) for a, b in self.positions)

    def rewritten(self) -> tuple[torch.fx.GraphModule, tuple[Edge, ...]]:
        """Replace the consumed ``module``; return the new one with the edges that it has to keep."""
        self.__dict__.pop("module", None)
        return self.module, self.order

    @cached_property
    def module(self) -> torch.fx.GraphModule:
        """The partition as its own graph: one placeholder for each input, a tuple of the results."""
        graph = torch.fx.Graph()
        copies: dict[torch.fx.Node, torch.fx.Node] = {}
        for border in self.borders:
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
        region.positions = tuple(orders[region.name])


def install_submodules(gm: torch.fx.GraphModule, regions: Iterable[ExtractedRegion]) -> None:
    """Give ``gm`` the regions as submodules that run eagerly, so that it is a valid module again."""
    for region in regions:
        if region.positions:
            add_control_deps(region.module.graph, as_dependencies(region.order))
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
        attributes: dict[torch.fx.Node, Any] = {}
        inputs = []
        for source in sources:
            meta = source.meta
            if source.op == "get_attr":
                value = attribute(self._gm, source.target)
                if not isinstance(value, torch.Tensor):
                    attributes[source] = value
                    continue
                meta = {"val": value, **meta}  # a constant without a value in the trace is its own value
            inputs.append(RegionInput(source.name, source, meta))
        results = tuple(node for node in partition.nodes if any(user not in members for user in node.users))
        call = self._call(partition, inputs, results)
        return ExtractedRegion(str(call.target), partition, call, inputs, results, attributes)

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

    def number(self) -> torch.fx.Node:
        """Return the symbol's node; a size is computed at the graph's insertion point."""
        if self.dimension is None:
            return self.node
        size = self.node.graph.call_function(torch.ops.aten.sym_size.int, (self.node, self.dimension))
        size.meta["val"] = self.value
        return size


def pass_missing_symbols(gm: torch.fx.GraphModule, regions: Sequence[ExtractedRegion]) -> None:
    """Add to ``regions`` and their calls in ``gm`` the symbols that none of their inputs provides."""
    inputs = {region.call: region.borders for region in regions}
    bearers: dict[str, _Bearer] = {}
    made: dict[str, torch.fx.Node] = {}
    for node in list(gm.graph.nodes):
        if node in inputs:
            values = [border.meta.get("val") for border in inputs[node]]
            bound = {symbol for value in values for symbol, _, _ in _plain_sizes(value)}
            needed = {str(symbol) for value in values if value is not None for symbol in free_symbols(value)}
            for symbol in sorted((needed - bound) & bearers.keys()):
                if symbol not in made:
                    with gm.graph.inserting_before(node):
                        made[symbol] = bearers[symbol].number()
                node.args = (*node.args, made[symbol])
                inputs[node].append(RegionInput(f"size_{symbol}", None, {"val": bearers[symbol].value}))
        for symbol, bearer in _borne_by(node):
            bearers.setdefault(symbol, bearer)


def nodes_of_symbols(symbols: Collection[str], bearers: Iterable[torch.fx.Node]) -> dict[str, torch.fx.Node]:
    """Return a node for each of ``symbols`` of ``bearers``; sizes are computed at the graph's insertion point."""
    found: dict[str, torch.fx.Node] = {}
    for node in bearers:
        for symbol, bearer in _borne_by(node):
            if symbol in symbols and symbol not in found:
                found[symbol] = bearer.number()
    return found


def _borne_by(node: torch.fx.Node) -> Iterator[tuple[str, _Bearer]]:
    if node.op in ("placeholder", "call_function"):
        for symbol, dimension, value in _plain_sizes(node.meta.get("val")):
            yield symbol, _Bearer(node, dimension, value)


def _plain_sizes(value: Any) -> Iterator[tuple[str, int | None, Any]]:
    """Yield the symbols that ``value`` is, or has as a size, with the dimension."""
    sizes: Iterable[tuple[int | None, Any]] = [(None, value)]
    if isinstance(value, torch.Tensor):
        sizes = enumerate(value.shape)
    for dimension, size in sizes:
        symbol = plain_symbol(size)
        if symbol is not None:
            yield symbol, dimension, size
