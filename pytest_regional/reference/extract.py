"""Turn partitions into ``call_module`` submodules, in one linear pass that writes the graph anew.

Attributes (constants, bodies of higher-order ops) are no members of partitions: a body is copied to wherever it is
used, and a constant too if its ``get_attr`` is annotated; other constants enter a partition as inputs.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch.fx

from pytest_regional._torch.annotations import region_mark
from pytest_regional._torch.region_compile import constants_may_travel, is_graph_module, lazy_graph_module
from pytest_regional.reference.partition import Partition, PartitionPlan

NAME_PREFIX = "compiled_region_"


@dataclass(frozen=True)
class ExtractedRegion:
    """A partition as a submodule of the graph it was taken from."""

    name: str
    partition: Partition
    module: torch.fx.GraphModule
    call: torch.fx.Node


def extract_partitions(gm: torch.fx.GraphModule, plan: PartitionPlan) -> list[ExtractedRegion]:
    """Rewrite ``gm`` so that each partition of ``plan`` is one submodule call; return them in execution order."""
    if not plan.partitions:
        return []
    return _Rewriter(gm).rewrite(plan)


def attribute(owner: torch.nn.Module, path: str) -> Any:
    """Return what a ``get_attr`` node with target ``path`` yields."""
    value: Any = owner
    for part in path.split("."):
        value = getattr(value, part)
    return value


@dataclass
class _Draft:
    """A partition's graph while it is written."""

    graph: torch.fx.Graph
    inputs: dict[torch.fx.Node, torch.fx.Node] = field(default_factory=dict)
    copies: dict[torch.fx.Node, torch.fx.Node] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)


class _Rewriter:
    def __init__(self, gm: torch.fx.GraphModule) -> None:
        self._gm = gm
        old = gm.graph
        self._new = torch.fx.Graph(gm, getattr(old, "_tracer_cls", None), getattr(old, "_tracer_extras", None))
        self._new.set_codegen(gm.graph._codegen)
        self._map: dict[torch.fx.Node, torch.fx.Node] = {}
        self._counts: Counter[str] = Counter()
        self._regions: list[ExtractedRegion] = []

    def rewrite(self, plan: PartitionPlan) -> list[ExtractedRegion]:
        old = self._gm.graph
        for placeholder in old.find_nodes(op="placeholder"):
            self._copy(placeholder)
        for step in plan.steps:
            if isinstance(step, Partition):
                self._extract(step)
            else:
                self._copy(step)
        self._copy(old.output_node())
        self._gm.graph = self._new
        return self._regions

    def _copy(self, node: torch.fx.Node) -> torch.fx.Node:
        if node not in self._map:
            self._map[node] = self._new.node_copy(node, self._outer)
        return self._map[node]

    def _outer(self, node: torch.fx.Node) -> torch.fx.Node:
        """Return the outer graph's node for ``node``; attributes are fetched where they are first used."""
        return self._copy(node) if node.op == "get_attr" else self._map[node]

    def _extract(self, partition: Partition) -> None:
        draft = self._draft(partition)
        results = _values_used_outside(partition)
        self._finish(draft, results)
        name = self._fresh_name(partition)
        module = lazy_graph_module(draft.attributes, draft.graph, name)
        self._gm.add_submodule(name, module)
        call = self._call(name, partition, [self._outer(node) for node in draft.inputs], results)
        self._regions.append(ExtractedRegion(name, partition, module, call))

    def _draft(self, partition: Partition) -> _Draft:
        draft = _Draft(torch.fx.Graph())
        members = set(partition.nodes)
        # Placeholders come first in a graph, so the inputs are declared before any member is written.
        for node in partition.nodes:
            for source in node.all_input_nodes:
                if source not in members and source not in draft.copies and source not in draft.inputs:
                    self._declare(draft, source)
        for node in partition.nodes:
            draft.copies[node] = draft.graph.node_copy(node, lambda source: self._inner(draft, source))
        return draft

    def _declare(self, draft: _Draft, source: torch.fx.Node) -> None:
        if source.op == "get_attr" and self._travels(source):
            return
        placeholder = draft.graph.placeholder(source.name)
        placeholder.meta = _placeholder_meta(self._gm, source)
        draft.inputs[source] = placeholder

    def _travels(self, source: torch.fx.Node) -> bool:
        value = attribute(self._gm, str(source.target))
        return not isinstance(value, torch.Tensor) or (region_mark(source)[0] and constants_may_travel())

    def _inner(self, draft: _Draft, source: torch.fx.Node) -> torch.fx.Node:
        if source in draft.inputs:
            return draft.inputs[source]
        if source not in draft.copies:  # an attribute that travels
            draft.copies[source] = draft.graph.node_copy(source)
            draft.attributes[str(source.target)] = attribute(self._gm, str(source.target))
        return draft.copies[source]

    def _finish(self, draft: _Draft, results: list[torch.fx.Node]) -> None:
        output = draft.graph.output(tuple(draft.copies[node] for node in results))
        output.meta["val"] = tuple(node.meta.get("val") for node in results)

    def _fresh_name(self, partition: Partition) -> str:
        stem = NAME_PREFIX + partition.key.identifier
        while True:
            name = f"{stem}_{self._counts[stem]}"
            self._counts[stem] += 1
            if not hasattr(self._gm, name):
                return name

    def _call(
        self, name: str, partition: Partition, arguments: list[torch.fx.Node], results: list[torch.fx.Node]
    ) -> torch.fx.Node:
        call = self._new.create_node("call_module", name, tuple(arguments), {}, name=name)
        call.meta = {
            **{key: value for key, value in partition.nodes[0].meta.items() if key in ("stack_trace", "custom")},
            "val": tuple(node.meta.get("val") for node in results),
        }
        for index, result in enumerate(results):
            element = self._new.create_node(
                "call_function", operator.getitem, (call, index), {}, name=result.name, type_expr=result.type
            )
            element.meta = dict(result.meta)
            self._map[result] = element
        return call


def _values_used_outside(partition: Partition) -> list[torch.fx.Node]:
    members = set(partition.nodes)
    return [node for node in partition.nodes if any(user not in members for user in node.users)]


def _placeholder_meta(gm: torch.fx.GraphModule, source: torch.fx.Node) -> dict[str, Any]:
    """Keep the metadata; a constant that the trace gave no value stands for itself."""
    meta = dict(source.meta)
    if "val" not in meta and source.op == "get_attr":
        meta["val"] = attribute(gm, str(source.target))
    return meta


def bodies_inside(regions: list[ExtractedRegion]) -> set[int]:
    """Return the identities of the graph modules that the extracted regions carry along."""
    return {id(value) for region in regions for value in _attributes(region.module) if is_graph_module(value)}


def _attributes(module: torch.fx.GraphModule) -> list[Any]:
    return [attribute(module, str(node.target)) for node in module.graph.find_nodes(op="get_attr")]


def called_attributes(gm: torch.fx.GraphModule) -> Mapping[str, torch.fx.GraphModule]:
    """Return the graph modules that ``gm`` refers to by ``get_attr``, by path."""
    found = {str(node.target): attribute(gm, str(node.target)) for node in gm.graph.find_nodes(op="get_attr")}
    return {path: value for path, value in found.items() if is_graph_module(value)}
