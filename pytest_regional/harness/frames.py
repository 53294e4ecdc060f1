"""Where in the nesting of a compile something was seen: graphs and frames, as the observer keeps them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from pytest_regional.harness import annotated
from pytest_regional.harness.annotated import RegionId
from pytest_regional.harness.passes import DynamoGraph
from pytest_regional.harness.record import GraphRecord, RegionRecord


@dataclass
class ObservedGraph:
    """A graph being observed; becomes a :class:`GraphRecord`.

    ``other`` names the Dynamo backend, if it is not the one under test.
    """

    kind: str
    ops: tuple[str, ...]
    text: str
    regions: dict[RegionId, tuple[tuple[str, ...], dict[str, Any]]]
    partitions: dict[RegionId, int] = field(default_factory=dict)
    other: str = ""

    @staticmethod
    def of(kind: str, gm: Any) -> ObservedGraph:
        """Look at ``gm``."""
        found = annotated.regions_in(gm)
        regions = {
            region: (tuple(filter(None, map(annotated.operator_of, nodes))), annotated.configs_of(nodes[0]))
            for region, nodes in found.items()
        }
        ops = tuple(filter(None, map(annotated.operator_of, annotated.nodes_of(gm))))
        return ObservedGraph(kind, ops, gm.print_readable(print_output=False), regions)

    def record(self) -> GraphRecord:
        """Return what is known of it now."""
        regions = tuple(
            RegionRecord(region[0], self.kind, ops, configs, self.partitions.get(region, 0))
            for region, (ops, configs) in self.regions.items()
        )
        return GraphRecord(self.kind, self.ops, self.text, regions)

    def add_calls(self, calls: list[RegionId]) -> None:
        """Note compiled calls that the compiled graph holds, one for each partition."""
        for region, seen in Counter(calls).items():
            if region in self.regions:
                self.partitions[region] = max(seen, self.partitions.get(region, 0))

    def add_partition(self, regions: tuple[RegionId, ...]) -> None:
        """Note that a partition of these regions was handed to Inductor."""
        for region in regions:
            if region in self.regions:
                self.partitions[region] = self.partitions.get(region, 0) + 1


@dataclass
class Frame:
    """One level of the nesting on one thread; ``other`` names the Dynamo backend, if not the one under test."""

    kind: str
    graph: ObservedGraph | None = None
    regions: tuple[RegionId, ...] = ()
    lookup_pending: bool = False
    made_graph: bool = False
    gm: Any = None
    module: Any = None
    dynamo_graph: DynamoGraph = field(default_factory=DynamoGraph)
    other: str = ""

    def __str__(self) -> str:
        names = ", ".join(dict.fromkeys(name for name, _ in self.regions))
        where = self.graph.kind if self.graph else "whole Dynamo"
        return f"region {names} of the {where} graph" if names else f"the {where} graph"
