"""Find few steps of many whose absence fixes a failure, with few experiments.

First by halves, which takes log2(n) experiments where one step alone is to blame; else by delta debugging
(Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002), which needs no step to be alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

Fixes = Callable[[Sequence[T]], bool]
"""Whether a failure is gone without these steps."""


@dataclass(frozen=True)
class Found(Generic[T]):
    """Steps whose absence, together, fixes a failure.

    Attributes:
        steps: in the order in which they were given.
        is_minimal: whether it is known that none of them can be left in; not where the experiments ran out.
        experiments: how many were made.
    """

    steps: tuple[T, ...]
    is_minimal: bool
    experiments: int


class _OutOfExperimentsError(Exception):
    """As many experiments were made as were allowed."""


def few_that_fix(steps: Sequence[T], fixes: Fixes[T], most: int) -> Found[T]:
    """Return few of ``steps`` whose absence fixes a failure, which the absence of all of them does.

    Args:
        steps: what can be left out.
        fixes: makes one experiment.
        most: how many experiments may be made.

    Raises:
        ValueError: no steps.
    """
    if not steps:
        raise ValueError("there is nothing to leave out")
    search = _Search(fixes, most)
    kept: list[T] = list(steps)
    try:
        kept = search.by_halves(kept)
        search.best = kept
        if len(kept) > 1:
            kept = search.by_delta_debugging(kept)
    except _OutOfExperimentsError:
        return Found(tuple(search.best or kept), False, search.experiments)
    return Found(tuple(kept), True, search.experiments)


class _Search(Generic[T]):
    def __init__(self, fixes: Fixes[T], most: int) -> None:
        self._fixes, self._most = fixes, most
        self.experiments = 0
        self.best: list[T] = []
        self._known: dict[tuple[T, ...], bool] = {}

    def _try(self, steps: list[T]) -> bool:
        if tuple(steps) not in self._known:
            self._known[tuple(steps)] = self._made(steps)
        return self._known[tuple(steps)]

    def _made(self, steps: list[T]) -> bool:
        if self.experiments == self._most:
            raise _OutOfExperimentsError
        self.experiments += 1
        fixed = self._fixes(steps)
        if fixed:
            self.best = steps
        return fixed

    def by_halves(self, steps: list[T]) -> list[T]:
        """Return the last half, of a half, ... that fixes alone."""
        while len(steps) > 1:
            middle = len(steps) // 2
            halves = steps[:middle], steps[middle:]
            better = next((half for half in halves if self._try(half)), None)
            if better is None:
                return steps
            steps = better
        return steps

    def by_delta_debugging(self, steps: list[T]) -> list[T]:
        """Return a part of ``steps`` of which no step can be left in."""
        parts = 2
        while len(steps) > 1:
            size = -(-len(steps) // parts)
            pieces = [steps[start : start + size] for start in range(0, len(steps), size)]
            without = ([one for other in pieces if other is not piece for one in other] for piece in pieces)
            smaller = next((rest for rest in without if len(pieces) > 1 and rest and self._try(rest)), None)
            if smaller is not None:
                steps, parts = smaller, max(parts - 1, 2)
            elif size == 1:
                break
            else:
                parts = min(2 * parts, len(steps))
        return steps
