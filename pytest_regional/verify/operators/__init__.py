"""What operators of PyTorch mean: an element of their result, of elements of their arguments.

It is told by their documentation; how Inductor lowers them is not asked.
"""

from __future__ import annotations

from collections.abc import Callable

from pytest_regional.verify.operators.calls import Call
from pytest_regional.verify.operators.combined import COMBINED, SEVERAL_COMBINED
from pytest_regional.verify.operators.elementwise import ELEMENTWISE
from pytest_regional.verify.operators.places import PIECES, PLACES
from pytest_regional.verify.symbols import Expression

MEANINGS: dict[str, Callable[[Call], Expression]] = {**ELEMENTWISE, **PLACES, **COMBINED}
"""Of those that return one tensor, by their names."""

SEVERAL: dict[str, Callable[[Call, int], Expression]] = {**PIECES, **SEVERAL_COMBINED}
"""Of those that return several, of which the number is given."""
