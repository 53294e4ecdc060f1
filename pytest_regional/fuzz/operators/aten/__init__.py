"""ATen's own operators: what tensors they take and what holds of the results; all else comes from their schemas.

The modules beside this package write operators as a user's program does, each with the few arguments that regional
compilation is about. Here it is the operators themselves that count: every overload with every argument.
"""

from __future__ import annotations

from pytest_regional.fuzz.operators.aten.arithmetic import arithmetic, foreach
from pytest_regional.fuzz.operators.aten.bits import bit_views, bitwise, comparisons
from pytest_regional.fuzz.operators.aten.functions import complex_numbers, smooth
from pytest_regional.fuzz.operators.aten.images import images, movements
from pytest_regional.fuzz.operators.aten.indexing import scattering
from pytest_regional.fuzz.operators.aten.networks import losses, normalizations, with_statistics
from pytest_regional.fuzz.operators.aten.products import products
from pytest_regional.fuzz.operators.aten.reductions import at_extreme, reductions, sorting
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


__all__ = ["derived_operators"]
