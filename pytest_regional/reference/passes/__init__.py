"""Graph passes for a pipeline: each a small frozen dataclass with a name, a uuid and its declarations.

``canonicalization`` cleans up and removes dead code, ``annotate`` marks ops for compilation, adds order edges and
overlaps collectives; ``RegionalInductor``, in ``reference.regional_inductor``, compiles regions. Each uuid contains a
digest of this project's code as ``version``.
"""

from pytest_regional.reference.passes.annotate import (
    AddControlDeps,
    Annotated,
    AnnotateOps,
    OverlapCollectives,
    PassMatchWarning,
    annotate_matching,
    annotate_ops,
)
from pytest_regional.reference.passes.canonicalization import (
    Canonicalization,
    DeadCodeElimination,
    canonicalize,
    eliminate_dead_code,
)
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
