"""Order edges besides data flow: ``control_deps`` in a graph, through regions, and of whole regions.

Read in this order: ``edges`` (wrapping one node in PyTorch's operator, and back; a legal order of the graph, the
two public functions, dependency targets, implied edges), ``whole_regions`` (order in
annotations, and a plan that keeps order), ``carry_over`` (order through Inductor's own trace and passes).
"""

from pytest_regional.reference.ordering.edges import (
    AddedOrder,
    OrderingCycleError,
    OrderingError,
    add_control_deps,
    remove_control_deps,
)
from pytest_regional.reference.ordering.whole_regions import RegionOrderWarning

__all__ = [
    "AddedOrder",
    "OrderingCycleError",
    "OrderingError",
    "RegionOrderWarning",
    "add_control_deps",
    "remove_control_deps",
]
