"""Order in graphs, for tests of any backend: PyTorch's ``control_deps`` operator, edges in graphs, overlap.

``add_control_deps`` and ``remove_control_deps`` change a ``torch.fx.Graph``; ``overlap_collectives`` is a graph pass's
work; ``control_deps()`` returns the operator. Errors are ``OrderingError`` and ``OrderingCycleError``.
"""

from pytest_regional._torch.operators import control_deps
from pytest_regional.reference.ordering import OrderingCycleError, OrderingError, add_control_deps, remove_control_deps
from pytest_regional.reference.overlap import overlap_collectives

__all__ = [
    "OrderingCycleError",
    "OrderingError",
    "add_control_deps",
    "control_deps",
    "overlap_collectives",
    "remove_control_deps",
]
