"""``full_inductor``: whole forward, backward and inference graphs compiled by Inductor, as the last pass of a list.

Read in this order: ``templates`` and ``decompose`` (Inductor's decompositions, which belong to it and not to capture),
``functional`` and ``collectives`` (what Inductor expects of a graph), ``compiling`` (the pass), ``program`` (what
forward and backward share), ``donating`` and ``outputs`` (memory of saved values), ``failure`` (the node it failed on),
``rooflines`` (what it is worth, beside other pipelines).
"""

from pytest_regional.reference.full_inductor.collectives import use_functional_collectives
from pytest_regional.reference.full_inductor.compiling import (
    FullInductor,
    FullInductorConfigError,
    full_inductor,
    kind_of,
)
from pytest_regional.reference.full_inductor.decompose import decompose
from pytest_regional.reference.full_inductor.errors import (
    CollectiveFormError,
    FullInductorError,
    MissingValueError,
    NotFunctionalError,
    NumericsWarning,
)
from pytest_regional.reference.full_inductor.outputs import check_functional
from pytest_regional.reference.full_inductor.rooflines import Roofline, Rooflines, compare_rooflines

__all__ = [
    "CollectiveFormError",
    "FullInductor",
    "FullInductorConfigError",
    "FullInductorError",
    "MissingValueError",
    "NotFunctionalError",
    "NumericsWarning",
    "Roofline",
    "Rooflines",
    "check_functional",
    "compare_rooflines",
    "decompose",
    "full_inductor",
    "kind_of",
    "use_functional_collectives",
]
