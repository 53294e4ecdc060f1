"""What the compilers decided for one program, as words; and which pairs of a feature and a decision it reached.

The words say what a program's structure does not: which fusions came of it, which lowerings ran, what AOTAutograd took
an input or output for, what a partitioner saved. :mod:`pytest_regional._torch.decisions` names the patch points.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_regional._torch.decisions import RecordedDecisions

#: Decisions of one operator: they are as many as operators, so that no feature is paired with them.
_OF_ONE_OPERATOR = ("aten:", "lowering:")

#: Features of one operator, or of a setting, of which the same holds.
_NOT_PAIRED = ("op:", "setting:")


@dataclass
class Decisions:
    """What was decided while :func:`decisions_recorded` lasted.

    Attributes:
        recorded: as the patch points gave it.
    """

    recorded: RecordedDecisions

    @property
    def words(self) -> frozenset[str]:
        """The decisions: kinds by name, and numbers by name with the power of two that they reach, ``saved >= 4``."""
        numbers = (f"{name} >= {_power_of_two(value)}" for name, value in self.recorded.magnitudes.items())
        return frozenset({*self.recorded.kinds, *numbers})

    @property
    def missing(self) -> tuple[str, ...]:
        """Patch points that the installed torch lacks, of which nothing is known therefore."""
        return self.recorded.missing


@contextlib.contextmanager
def decisions_recorded() -> Iterator[Decisions]:
    """Record what the compilers of this process decide while the context lasts."""
    from pytest_regional._torch.decisions import recording_decisions

    with recording_decisions() as recorded:
        yield Decisions(recorded)


def coverage_keys(features: frozenset[str], decisions: frozenset[str]) -> frozenset[str]:
    """Return what a program covers: its decisions, and pairs of a feature and a decision.

    Neither features nor decisions that belong to one operator are paired: nearly every program would be the first to
    reach one of so many pairs.
    """
    paired = [one for one in decisions if not one.startswith(_OF_ONE_OPERATOR)]
    pairs = (f"{feature} & {one}" for feature in features if not feature.startswith(_NOT_PAIRED) for one in paired)
    return frozenset({*decisions, *pairs})


def _power_of_two(value: int) -> int:
    return 1 << (value.bit_length() - 1)


__all__ = ["Decisions", "coverage_keys", "decisions_recorded"]
