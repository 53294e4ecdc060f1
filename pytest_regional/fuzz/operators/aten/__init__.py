"""ATen's own operators: what tensors they take and what holds of the results; all else comes from their schemas.

The modules beside this package write operators as a user's program does, each with the few arguments that regional
compilation is about. Here it is the operators themselves that count: every overload with every argument.
``arithmetic``, ``indexing``, ``networks`` and ``reductions`` hold the tables, ``ranges`` the values of results.
"""

from __future__ import annotations

from pytest_regional.fuzz.operators.aten.arithmetic import arithmetic, bit_views, bitwise, comparisons, foreach
from pytest_regional.fuzz.operators.aten.indexing import complex_numbers, scattering, smooth
from pytest_regional.fuzz.operators.aten.networks import images, losses, movements, normalizations, with_statistics
from pytest_regional.fuzz.operators.aten.reductions import at_extreme, products, reductions, sorting
from pytest_regional.fuzz.operators.operator import Operator


def derived_operators() -> tuple[Operator, ...]:
    """Return the operators that come from schemas, as far as this torch has them."""
    several = (
        *arithmetic(),
        *bitwise(),
        *comparisons(),
        *smooth(),
        *reductions(),
        *sorting(),
        *scattering(),
        *products(),
        *foreach(),
        *images(),
        *movements(),
        *normalizations(),
        *losses(),
    )
    return (
        *(one for group in several for one in group),
        *complex_numbers(),
        *bit_views(),
        *at_extreme(),
        *with_statistics(),
    )
