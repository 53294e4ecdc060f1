"""Order inside a region, carried past the second trace to where Inductor schedules.

Inductor traces a region once more, which runs through ``control_deps`` and loses it (torch 2.11 to 2.15). So a region
is handed over without the operator, with marks on its ops instead. Marks are annotations, which a trace copies to all
ops that an op is decomposed into. Behind Inductor's own graph passes they are read, and the operator is put in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch.fx

from pytest_regional._torch.ordering import appended_passes, custom_graph_pass
from pytest_regional.reference.effects import Edge
from pytest_regional.reference.ordering.add import add_control_deps
from pytest_regional.reference.ordering.marks import MarkedOrder
from pytest_regional.reference.ordering.standing import Snapshots


@contextlib.contextmanager
def carried_order(module: torch.fx.GraphModule, edges: tuple[Edge, ...]) -> Iterator[None]:
    """Make Inductor keep ``edges`` while it compiles ``module``, and the order inside bodies that it refers to.

    Raises:
        OrderingError: inside, when Inductor's own graph passes left an order that cannot be kept.
    """
    order = MarkedOrder.of(module, edges)
    if not order.edges:
        yield
        return
    noting, applying = _passes(order)
    with appended_passes(joint_custom_pre_pass=noting, post_grad_custom_post_pass=applying):
        yield


def _passes(order: MarkedOrder) -> tuple[Any, Any]:
    """Return the pass that looks at a graph before Inductor changes it, and the one that puts the operator in."""
    base: Any = custom_graph_pass()
    snapshots = Snapshots(order.edges)

    class NoteOrder(base):  # type: ignore[misc]
        def __call__(self, graph: torch.fx.Graph) -> None:
            snapshots.note(graph)

        def uuid(self) -> str:
            return order.identity

    class ApplyOrder(base):  # type: ignore[misc]
        def __call__(self, graph: torch.fx.Graph) -> None:
            dependencies = snapshots.dependencies(graph)
            if dependencies:
                add_control_deps(graph, dependencies)

        def uuid(self) -> str:
            return order.identity

    return NoteOrder(), ApplyOrder()
