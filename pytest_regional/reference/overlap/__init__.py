"""Collectives overlapped with compute: started early, waited for late, within a bound on memory.

Read in this order: ``ops`` (what a node runs), ``collectives`` (starts and their waits), ``costs`` (what hides them),
``program`` (all that the pass knows of a graph), ``levels`` and ``claims`` (the bounds), ``sinking`` and ``hoisting``
(the moves), ``pins`` (the edges that keep them), ``plan`` (what is told), ``schedule`` (all of it as one pass).
"""

from pytest_regional.reference.overlap.collectives import Cost, compute_cost
from pytest_regional.reference.overlap.program import OverlapError
from pytest_regional.reference.overlap.schedule import OverlapPlan, PlannedCollective, overlap_collectives

__all__ = ["Cost", "OverlapError", "OverlapPlan", "PlannedCollective", "compute_cost", "overlap_collectives"]
