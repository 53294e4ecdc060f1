"""The phases of a compile, the clocks that measure them, and the error for a name that is no phase."""

from __future__ import annotations

from pytest_regional._errors import RegionalValueError
from pytest_regional._text import unknown_name

#: In the order of a compile. ``passes`` are the pre-grad, joint and post-grad passes, ``inductor`` its lowering,
#: scheduling and code generation, ``compiler`` the C++ or Triton compiler, ``cache`` lookups, loads and saves, and
#: ``other`` what is left: mostly the backend's own code.
PHASES = ("dynamo", "aot_autograd", "passes", "inductor", "compiler", "cache", "other")

#: All phases together.
TOTAL = "total"

#: ``wall`` is the time that passes, ``cpu`` what a compile takes of processors, which other load changes less.
CLOCK_NAMES = ("wall", "cpu")


def checked_phase(name: str | None) -> str:
    """Return the name of a phase, :data:`TOTAL` for ``None``.

    Raises:
        RegionalValueError: it is none.
    """
    if name is None or name == TOTAL:
        return TOTAL
    if name not in PHASES:
        raise RegionalValueError(unknown_name("phase of a compile", name, (*PHASES, TOTAL)))
    return name
