"""Order edges and overlapped collectives as passes over ``reference.ordering`` and ``reference.overlap``."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.fx

from pytest_regional._base.text import plural
from pytest_regional.reference.ordering import AddedOrder, add_control_deps
from pytest_regional.reference.overlap import Cost, OverlapPlan, compute_cost, overlap_collectives
from pytest_regional.reference.pass_protocol import DEFAULT_GRAPHS, Pass
from pytest_regional.reference.pass_uuids import OWN_CODE

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
