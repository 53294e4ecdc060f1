"""Make a failing program small: a reducer that knows what programs are.

Hypothesis shrinks the integers that a program was drawn from; it cannot take a step away *and* let its users read
something else. This reducer edits the program itself, and every edit is settled by a :class:`Builder`: what does not
fit is tried with the simplest parameters, then dropped as well. Large cuts come first, cosmetics last; all is repeated
until nothing helps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from pytest_regional.fuzz.model.program import Program, renumbered
from pytest_regional.fuzz.shrink.candidates import Candidate, cost, rebuild
from pytest_regional.fuzz.shrink.edits import EDITS, Edit


def reduce_program(
    program: Program, still_fails: Callable[[Program], bool], *, seconds: float = 60.0, attempts: int = 500
) -> Program:
    """Return a program no larger than ``program`` that still fails; no edit known here makes it smaller.

    Args:
        program: a program for which ``still_fails`` holds.
        still_fails: whether a program fails in the same way. What it raises is passed on.
        seconds: no candidate is tried later.
        attempts: ``still_fails`` is called no more often.
    """
    search = _Search(still_fails, time.monotonic() + seconds, attempts)
    return renumbered(search.fixed_point(program))


class _Search:
    """A greedy descent that asks for no program twice."""

    def __init__(self, still_fails: Callable[[Program], bool], deadline: float, attempts: int) -> None:
        self._still_fails, self._deadline, self._attempts = still_fails, deadline, attempts
        self._seen: set[str] = set()

    def fixed_point(self, program: Program) -> Program:
        before = None
        self._seen.add(program.identity)
        while before is not program and not self._spent:
            before = program
            for edit in EDITS:
                program = self._improve(program, edit)
        return program

    @property
    def _spent(self) -> bool:
        return self._attempts <= 0 or time.monotonic() >= self._deadline

    def _improve(self, program: Program, edit: Edit) -> Program:
        """Apply ``edit`` as often as it helps."""
        found: Program | None = program
        while found is not None:
            program, found = found, next(self._successes(found, edit), None)
        return program

    def _successes(self, program: Program, edit: Edit) -> Iterator[Program]:
        for candidate in edit(program):
            if self._spent:
                return
            smaller = self._rebuilt(candidate, program)
            if smaller is not None and self._fails(smaller):
                yield smaller

    def _rebuilt(self, candidate: Candidate, program: Program) -> Program | None:
        """Return the program that ``candidate`` comes to, if it is simpler than ``program`` and new."""
        smaller = rebuild(candidate, program)
        if smaller is None or cost(smaller) >= cost(program):
            return None
        identity = smaller.identity
        if identity in self._seen:
            return None
        self._seen.add(identity)
        return smaller

    def _fails(self, program: Program) -> bool:
        self._attempts -= 1
        return self._still_fails(program)


__all__ = ["reduce_program"]
