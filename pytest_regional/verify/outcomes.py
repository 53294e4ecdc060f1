"""What was found out about a property of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_regional._errors import RegionalError

PROVED, REFUTED, UNKNOWN = "proved", "refuted", "unknown"

MEMORY, RACES, COVERAGE, BUFFERS, LOOPS = "memory", "races", "coverage", "buffers", "loops"
PROPERTIES = (MEMORY, RACES, COVERAGE, BUFFERS, LOOPS)


class NotVerifiableError(RegionalError):
    """Part of a kernel, or of the code that launches it, is outside of what is proved; the message names it."""


class UndecidedError(NotVerifiableError):
    """z3 does not know, or not in time; with more time it might."""


@dataclass(frozen=True)
class Counterexample:
    """Values with which a property does not hold.

    Attributes:
        sizes: the program's symbolic sizes, by name.
        programs: places in the grid: one, or the two that meet.
        loaded: for each argument whose elements matter: element number to value; None stands for all others.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    programs: tuple[tuple[int, int, int], ...] = ()
    loaded: Mapping[str, Mapping[int | None, int]] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [f"{name} = {value}" for name, value in sorted(self.sizes.items())]
        places = list(dict.fromkeys(self.programs))
        parts += [f"program{'s' * (len(places) > 1)} {' and '.join(map(str, places))}"] if places else []
        for argument, values in self.loaded.items():
            elements = [f"{argument}[{place}] = {value}" for place, value in values.items() if place is not None]
            parts += elements or [f"all of {argument} {values.get(None, 0)}"]
        return ", ".join(parts)


@dataclass(frozen=True)
class Outcome:
    """One property of one kernel.

    Attributes:
        property: one of PROPERTIES.
        verdict: PROVED, REFUTED or UNKNOWN.
        reason: for all but PROVED: what was found, or why nothing was.
        seconds: how long it took.
        counterexample: for REFUTED.
        final: whether another run, with more time or memory, would find out the same.
    """

    property: str
    verdict: str
    reason: str = ""
    seconds: float = 0.0
    counterexample: Counterexample | None = None
    final: bool = True
