"""What a row of the table is: a claim, and the pairs of measurements that bear it out or do not."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

#: How one figure is made of what was measured in one turn.
FIGURES: Mapping[str, Callable[[float, float], float]] = {
    "ours / theirs": lambda ours, theirs: ours / theirs,
    "theirs / ours": lambda ours, theirs: theirs / ours,
    "ours - theirs": lambda ours, theirs: ours - theirs,
}


@dataclass(frozen=True)
class Target:
    """A bound on the median of the figures, and how the table writes it."""

    text: str
    most: float = math.inf
    least: float = -math.inf

    def is_met_by(self, figure: float) -> bool:
        """Tell whether ``figure`` keeps to the bound."""
        return self.least <= figure <= self.most


@dataclass(frozen=True)
class Claim:
    """One row before it is measured.

    Attributes:
        name: the first column.
        ours: what is measured.
        theirs: what it is measured against.
        unit: of both.
        target: what the figure should be; ``None`` where a row only informs.
        figure: a key of :data:`FIGURES`.
        style: how the table writes a figure, a format with one place.
    """

    name: str
    ours: str
    theirs: str
    unit: str
    target: Target | None = None
    figure: str = "ours / theirs"
    style: str = "{:.2f}"

    def row(self, ours: Sequence[float], theirs: Sequence[float], note: str = "") -> Row:
        """Return the row of what was measured in turns.

        Where theirs was measured less often, because it takes minutes, its last measurement stands for the turns after.
        """
        of_two = FIGURES[self.figure]
        padded = [theirs[min(turn, len(theirs) - 1)] for turn in range(len(ours))]
        return Row(self, tuple(ours), tuple(theirs), tuple(map(of_two, ours, padded)), note)


@dataclass(frozen=True)
class Row:
    """A claim measured: what each turn gave, and its figure."""

    claim: Claim
    ours: tuple[float, ...] = ()
    theirs: tuple[float, ...] = ()
    figures: tuple[float, ...] = ()
    note: str = ""
    error: str = ""

    @property
    def median(self) -> float:
        """The middle of the figures of all turns."""
        return statistics.median(self.figures)

    @property
    def met(self) -> bool | None:
        """Whether the median meets the target; ``None`` where there is none, or nothing was measured."""
        if self.error or self.claim.target is None:
            return None
        return self.claim.target.is_met_by(self.median)
