"""What can be wrong with a requested order."""

from __future__ import annotations

from collections.abc import Sequence


class OrderingError(ValueError):
    """An order was asked for that means nothing in this graph; the message says which nodes and why."""


class OrderingCycleError(OrderingError):
    """The requested order contradicts itself, the flow of values, or effects that keep their order.

    Attributes:
        cycle: names of the nodes (or regions) on one cycle, each before the next, the first again at the end.
    """

    def __init__(self, message: str, cycle: Sequence[str]) -> None:
        super().__init__(message)
        self.cycle = tuple(cycle)


class MergedOpsError(OrderingError):
    """Inductor made one op of several that another one has to run between."""
