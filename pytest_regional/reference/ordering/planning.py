"""The plan of a graph that holds order: the operator is taken out, and the plan keeps what it asked for.

Between partitions, and between them and eager ops, order is the order of execution. Within a partition it is kept as
edges, which the compiler of the region is told.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.fx

from pytest_regional.reference.effects import Barrier, Edge
from pytest_regional.reference.ordering.remove import remove_control_deps
from pytest_regional.reference.ordering.sorting import sort_by
from pytest_regional.reference.ordering.whole_regions import order_of_regions
from pytest_regional.reference.partition import PartitionPlan, plan_partitions


@dataclass(frozen=True)
class OrderedPlan:
    """A plan, and the order beyond values and effects that it keeps."""

    partitions: PartitionPlan
    edges: tuple[Edge, ...]
    barriers: tuple[Barrier, ...]


def plan_in_order(graph: torch.fx.Graph) -> OrderedPlan:
    """Plan ``graph``, which holds no order edges afterwards and may have nodes moved.

    Raises:
        OrderingCycleError: when regions ask for an order that values, effects or edges forbid.
    """
    edges = remove_control_deps(graph, bodies=False)
    barriers = order_of_regions(graph)
    if barriers:
        sort_by(graph, edges, barriers)
    return OrderedPlan(plan_partitions(graph, extra_edges=edges, barriers=barriers), edges, tuple(barriers))
