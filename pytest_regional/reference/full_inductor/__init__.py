"""``full_inductor``: whole forward, backward and inference graphs compiled by Inductor, as the last pass of a list.

Read in this order: ``decompose`` (Inductor's decompositions, applied here and not at capture), ``collectives``
(Inductor's form of collectives), ``compiling`` (the pass, state shared by forward and backward, errors with their
node), ``outputs`` (functional form, aliasing of outputs, buffer donation).
"""

from pytest_regional.reference.full_inductor.collectives import use_functional_collectives
from pytest_regional.reference.full_inductor.compiling import FullInductor, full_inductor, kind_of
from pytest_regional.reference.full_inductor.decompose import decompose
from pytest_regional.reference.full_inductor.errors import FullInductorError, MissingValueError, NumericsWarning
from pytest_regional.reference.full_inductor.outputs import check_functional

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
