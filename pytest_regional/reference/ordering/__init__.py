"""Order that no value asks for: ``control_deps`` edges in a graph, through regions, and of whole regions.

Read in this order: ``operator`` (one node in and out of PyTorch's operator), ``sorting`` (the graph in a legal order),
``edges`` (the two functions for users, dependency targets, edges that hold anyway), ``whole_regions`` (what annotations
ask for, and a plan that keeps order), ``carry_over`` (order past Inductor's own trace and passes).
"""

from pytest_regional.reference.ordering.edges import AddedOrder, add_control_deps, remove_control_deps
from pytest_regional.reference.ordering.operator import OrderingCycleError, OrderingError
from pytest_regional.reference.ordering.whole_regions import RegionOrderWarning

__all__ = [
    "AddedOrder",
    "OrderingCycleError",
    "OrderingError",
    "RegionOrderWarning",
    "add_control_deps",
    "remove_control_deps",
]
