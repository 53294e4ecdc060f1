"""``full_inductor``: whole forward, backward and inference graphs compiled by Inductor, as the last pass of a list.

Read in this order: ``decomposing`` (Inductor's decompositions, applied here and not at capture, and its form of
collectives), ``compiling`` (the pass, state shared by forward and backward, errors with their node, aliasing of
outputs, buffer donation).
"""

from pytest_regional.reference.full_inductor.compiling import FullInductor, check_functional, full_inductor, kind_of
from pytest_regional.reference.full_inductor.decomposing import (
    FullInductorError,
    MissingValueError,
    NumericsWarning,
    decompose,
    use_functional_collectives,
)

__all__ = [
    "FullInductor",
    "FullInductorError",
    "MissingValueError",
    "NumericsWarning",
    "check_functional",
    "decompose",
    "full_inductor",
    "kind_of",
    "use_functional_collectives",
]
