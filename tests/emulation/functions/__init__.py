"""The functions that the emulation must get right, by theme."""

from __future__ import annotations

from . import (
    attention,
    casts,
    control_flow,
    dynamic,
    indexing,
    integers,
    layout,
    matmuls,
    models,
    mutation,
    normalisation,
    pointwise,
    randomness,
    reductions,
    scans,
    user_kernels,
)
from .case import DTYPES, Case

__all__ = ["CASES", "DTYPES", "Case"]

_THEMES = (
    pointwise,
    integers,
    casts,
    reductions,
    normalisation,
    scans,
    indexing,
    layout,
    matmuls,
    attention,
    randomness,
    user_kernels,
    mutation,
    dynamic,
    control_flow,
    models,
)
CASES: dict[str, Case] = {case.name: case for theme in _THEMES for case in theme.CASES}
