"""Graph passes for a pipeline: each a small frozen dataclass with a name, a uuid and its declarations.

``dead_code`` and ``canonicalization`` clean up, ``annotate`` marks ops for compilation, ``order`` adds order edges and
overlaps collectives; ``RegionalInductor``, next to its function, compiles regions. ``version`` is part of all their
uuids.
"""

from pytest_regional.reference.passes.annotate import (
    Annotated,
    AnnotateOps,
    PassMatchWarning,
    annotate_matching,
    annotate_ops,
)
from pytest_regional.reference.passes.canonicalization import Canonicalization, canonicalize
from pytest_regional.reference.passes.dead_code import DeadCodeElimination, eliminate_dead_code
from pytest_regional.reference.passes.order import AddControlDeps, OverlapCollectives
from pytest_regional.reference.regional_inductor import RegionalInductor

__all__ = [
    "AddControlDeps",
    "AnnotateOps",
    "Annotated",
    "Canonicalization",
    "DeadCodeElimination",
    "OverlapCollectives",
    "PassMatchWarning",
    "RegionalInductor",
    "annotate_matching",
    "annotate_ops",
    "canonicalize",
    "eliminate_dead_code",
]
