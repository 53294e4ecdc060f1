"""Order that nobody's values ask for: ``control_deps`` edges in a graph, through regions, and of whole regions.

``operator`` (one node in and out of PyTorch's operator), ``waitable`` (what others can wait for), ``implied`` (edges
that hold anyway), ``sorting`` (the graph in a legal order), ``add`` and ``remove`` (the two functions for users),
``whole_regions`` (what annotations ask for), ``planning`` (a plan that keeps order), ``carry`` with ``marks`` and
``standing`` (order past Inductor's own trace and passes).
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
