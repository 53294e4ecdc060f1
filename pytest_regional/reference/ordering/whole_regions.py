"""Order of whole regions, given in annotations: ``region("comm", after=["mlp"])``.

In a forward graph all of ``comm`` runs after all of ``mlp``. For gradients it is reversed, like all of automatic
differentiation, so the order agrees with data flow in the backward wherever it does in the forward. Ops that a
checkpoint recomputes keep the order of the forward.
"""

from __future__ import annotations

import difflib
import warnings
from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

import torch.fx

from pytest_regional._base.errors import RegionalWarning
from pytest_regional._torch.fx_graphs import bodies_of, is_backward_node
from pytest_regional.reference.effects import Barrier, Edge, launches
from pytest_regional.reference.gradients import with_sums_of_gradients
from pytest_regional.reference.ordering.edges import remove_control_deps, sort_by
from pytest_regional.reference.partition import PartitionPlan, plan_partitions
from pytest_regional.reference.regions import RegionKey, freeze, read_region_keys, regions_before


class RegionOrderWarning(RegionalWarning):
    """A region is annotated to run after one that its graph does not have."""


def order_of_regions(graph: torch.fx.Graph) -> list[Barrier]:
    """Return the barriers from annotations of ``graph``, and of bodies that its nodes run."""
    if not _requests_order(graph):
        return []
    seen = _Seen.in_graph(graph)
    return [barrier for later, earlier in seen.requested for barrier in seen.barriers(later, earlier)]


def warn_of_unknown_regions(graph: torch.fx.Graph) -> None:
    """Warn if a region should run after a missing one: in an earlier graph, perhaps, or misspelt."""
    seen = _Seen.in_graph(graph) if _requests_order(graph) else _Seen()
    for later, earlier in seen.requested:
        if earlier not in seen.labels and any(not is_backward_node(node) for node in seen.members[later]):
            label, missing = seen.labels[later], seen.requested[later, earlier]
            others = [name for name in seen.labels.values() if name != label]
            near = difflib.get_close_matches(str(missing), others, n=1)
            warnings.warn(
                f"region {label!r} is to run after {missing!r}, which has no op in this graph; it has "
                f"{', '.join(map(repr, others)) or 'no other region'}"
                + (f" (did you mean {near[0]!r}?)" if near else "")
                + ". Regions of graphs before a graph break run first anyway.",
                RegionOrderWarning,
                stacklevel=2,
            )


def _requests_order(graph: torch.fx.Graph) -> bool:
    """Say whether any annotation requests order: most graphs have none and need no planning for it."""
    if any(map(regions_before, graph.nodes)):
        return True
    owner = graph.owning_module
    paths = {str(node.target) for node in graph.find_nodes(op="get_attr")} if owner is not None else set()
    bodies = (getattr(owner, path, None) for path in paths)
    return any(_requests_order(body.graph) for body in bodies if isinstance(body, torch.fx.GraphModule))


@dataclass
class _Seen:
    """The order in a graph's annotations, and the nodes of each region."""

    labels: dict[Hashable, str] = field(default_factory=dict)
    members: dict[Hashable, list[torch.fx.Node]] = field(default_factory=lambda: defaultdict(list))
    requested: dict[tuple[Hashable, Hashable], object] = field(default_factory=dict)

    @classmethod
    def in_graph(cls, graph: torch.fx.Graph) -> _Seen:
        seen = cls()
        keys = with_sums_of_gradients(graph, read_region_keys(graph))
        annotations: dict[int, object] = {}
        for node in graph.nodes:
            if node in keys:
                seen._note(node, keys[node], annotations)
            for body in bodies_of(node):
                inner = cls.in_graph(body.graph)
                seen.labels.update(inner.labels)
                seen.requested.update(inner.requested)
                for region in inner.members:
                    if node not in seen.members[region]:
                        seen.members[region].append(node)
        return seen

    def _note(self, node: torch.fx.Node, key: RegionKey, annotations: dict[int, object]) -> None:
        """Add ``node`` to its region; an annotation shared by several nodes is read once."""
        self.labels[key.region] = key.label
        if launches(node):
            self.members[key.region].append(node)
        annotation = node.meta.get("custom")  # a sum of gradients has none
        if id(annotation) not in annotations:
            annotations[id(annotation)] = annotation
            self.requested.update({(key.region, freeze(earlier)): earlier for earlier in regions_before(node)})

    def barriers(self, later: Hashable, earlier: Hashable) -> Iterator[Barrier]:
        """Yield the barrier between two regions, and the one between their gradients."""
        for first, second, gradients in ((earlier, later, False), (later, earlier, True)):
            before, after = (
                [node for node in self.members.get(region, ()) if is_backward_node(node) == gradients]
                for region in (first, second)
            )
            before_alone = tuple(node for node in before if node not in after)
            if before_alone and after:
                what = "gradients of region" if gradients else "region"
                name = f"{what} {self.labels[second]!r} after {self.labels[first]!r}"
                yield Barrier(name, before_alone, tuple(node for node in after if node not in before))


@dataclass(frozen=True)
class OrderedPlan:
    """A plan, and the order that it keeps besides values and effects."""

    partitions: PartitionPlan
    edges: tuple[Edge, ...]
    barriers: tuple[Barrier, ...]


def plan_in_order(graph: torch.fx.Graph) -> OrderedPlan:
    """Plan ``graph``; this removes its order edges and may move nodes.

    Raises:
        OrderingCycleError: values, effects or edges forbid the order of regions.
    """
    edges = remove_control_deps(graph, bodies=False)
    barriers = order_of_regions(graph)
    if barriers:
        sort_by(graph, edges, barriers)
    return OrderedPlan(plan_partitions(graph, extra_edges=edges, barriers=barriers), edges, tuple(barriers))
