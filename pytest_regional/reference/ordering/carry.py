"""Order inside a region, carried past the second trace to where Inductor schedules.

Inductor traces a region once more, which runs through ``control_deps`` and loses it (torch 2.11 to 2.15). So a region
is handed over without the operator, with marks on its ops instead. Marks are annotations, which a trace copies to all
ops that an op is decomposed into. Behind Inductor's own graph passes they are read, and the operator is put in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch.fx

from pytest_regional._torch.ordering import appended_passes, custom_graph_pass
from pytest_regional.reference.effects import Edge
from pytest_regional.reference.ordering.add import add_control_deps
from pytest_regional.reference.ordering.errors import OrderingError
from pytest_regional.reference.ordering.marks import MarkedOrder
from pytest_regional.reference.ordering.standing import Snapshots

Result = TypeVar("Result")
WriteModule = Callable[[], tuple[torch.fx.GraphModule, tuple[Edge, ...]]]


def compile_in_order(write: WriteModule, compile_module: Callable[[torch.fx.GraphModule], Result]) -> Result:
    """Return ``compile_module(module)``, where Inductor keeps the edges that ``write`` returns with the module.

    The order inside bodies that the module refers to is kept too. Where Inductor's patterns for the graph merge ops
    that another has to run between, ``write`` and ``compile_module`` are called once more, and the operator is put in
    ahead of those patterns.

    Raises:
        OrderingError: in whatever Inductor wraps it, when ops were merged even before that.
    """
    module, edges = write()
    carrier = _Carrier(MarkedOrder.of(module, edges))
    try:
        with carrier.passes("post_grad_custom_post_pass"):
            return compile_module(module)
    except Exception:
        if not carrier.ops_were_merged:
            raise
    module, edges = write()
    with _Carrier(MarkedOrder.of(module, edges)).passes("post_grad_custom_pre_pass"):
        return compile_module(module)


class _Carrier:
    """The passes of one compile: one looks at a graph before Inductor changes it, the other puts the operator in."""

    def __init__(self, order: MarkedOrder) -> None:
        self._order = order
        self._snapshots = Snapshots(order.edges)
        self.ops_were_merged = False

    @contextlib.contextmanager
    def passes(self, stage: str) -> Iterator[None]:
        """Run the passes for a while, the second one at ``stage``; none where there is nothing to order."""
        if not self._order.edges:
            yield
            return
        with appended_passes(joint_custom_pre_pass=self._pass(self._snapshots.note), **{stage: self._pass(self._add)}):
            yield

    def _add(self, graph: torch.fx.Graph) -> None:
        try:
            dependencies = self._snapshots.dependencies(graph)
            if dependencies:
                add_control_deps(graph, dependencies)
        except OrderingError:  # the region's own graph has no cycle
            self.ops_were_merged = True
            raise

    def _pass(self, action: Callable[[torch.fx.Graph], None]) -> Any:
        base: Any = custom_graph_pass()
        identity = self._order.identity

        class CarriedOrder(base):  # type: ignore[misc]
            def __call__(self, graph: torch.fx.Graph) -> None:
                action(graph)

            def uuid(self) -> str:
                return identity

        return CarriedOrder()
