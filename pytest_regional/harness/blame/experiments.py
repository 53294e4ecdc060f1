"""A failure that recompiling reproduces, and what becomes of it where one thing is changed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from pytest_regional._base.errors import RegionalError
from pytest_regional._base.processes import cpu_seconds
from pytest_regional.backends.spec import BackendSpec

Signature = frozenset[str]
"""What fails, each difference or exception by its kind and place; empty where nothing does."""

RAISED = "raised "
"""How a part of a signature begins that is of an exception."""

ASSERTED = RAISED + "by the check at "
"""How one begins that names the line of the check whose assertion fails."""

Outcome = Literal["fixed", "the same", "another failure"]


@dataclass(frozen=True)
class Change:
    """What one experiment does otherwise.

    Attributes:
        sentence: what is changed, as a clause: "without rewrite pad_mm at mm_1"; empty for nothing.
        within: makes a context around the compile and the calls.
        backend: a Dynamo backend that compiles in place of the one under test.
        instead: another backend in place of the one under test, with all that its specification has.
        eager_regions: regions that lose their annotation.
        passes_left_out: the user's graph passes that do not run, by their place in the list.
        compiles: whether anything is compiled; else the program is called as it is.
        generates_code: whether the backend generates code; not where what it was handed runs eagerly.
    """

    sentence: str = ""
    within: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    backend: Callable[..., Any] | None = None
    instead: BackendSpec | None = field(default=None, hash=False)
    eager_regions: frozenset[str] = frozenset()
    passes_left_out: frozenset[int] = frozenset()
    compiles: bool = True
    generates_code: bool = True


@dataclass(frozen=True)
class Experiment:
    """One experiment that was made.

    Attributes:
        sentence: what was changed.
        outcome: what became of the failure.
        seconds: wall clock.
        signature: what failed.
        generated_code: whether the backend generated code, which is what an experiment costs.
    """

    sentence: str
    outcome: Outcome
    seconds: float
    signature: Signature = frozenset()
    generated_code: bool = True

    @property
    def crashed(self) -> bool:
        """Whether a compiler raised what failed: no comparison, and no assertion of the check's."""
        return is_exception(self.signature) and not any(part.startswith(ASSERTED) for part in self.signature)


_USUAL_SECONDS = 60.0


class OutOfTimeError(RegionalError):
    """The experiments took as long as they may, or there were as many as may be."""


@dataclass
class Experiments:
    """Makes experiments with one failure, within limits, and keeps what they showed.

    Attributes:
        reproduce: compiles and calls the program under a change; returns what fails.
        usual: what fails without a change.
        most: how many experiments may be made; more where there is more time.
        seconds: of CPU time that they may take together: it is the same on a machine that does other work.
        made: those that were made, in order.
    """

    reproduce: Callable[[Change], Signature]
    usual: Signature
    most: int = 60
    seconds: float = _USUAL_SECONDS
    made: list[Experiment] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start the clock.

        Raises:
            ValueError: nothing fails.
        """
        if not self.usual:
            raise ValueError("nothing fails, so nothing is to blame")
        self._started = cpu_seconds()
        self.most = max(self.most, int(self.seconds)) if self.seconds > _USUAL_SECONDS else self.most
        self.aim_at(self.usual)

    def aim_at(self, failing: Signature) -> None:
        """From now on see after one of several values that are wrong: they may have causes of their own."""
        self._aim = self.usual if is_exception(self.usual) else frozenset({min(failing, key=_order)})

    def remaining(self) -> Signature:
        """Return what of the usual failure remained in the last experiment that fixed what was aimed at."""
        last = next((one for one in reversed(self.made) if one.outcome == "fixed"), None)
        return last.signature & self.usual if last else frozenset()

    @property
    def raises(self) -> bool:
        """Whether an exception is what fails, and no comparison."""
        return is_exception(self.usual)

    @property
    def left(self) -> int:
        """How many may still be made, if time allows."""
        return self.most - len(self.made)

    def outcome_of(self, change: Change) -> Outcome:
        """Make one experiment.

        Raises:
            OutOfTimeError: no more may be made.
        """
        if self.left <= 0 or cpu_seconds() - self._started > self.seconds:
            raise OutOfTimeError
        began = time.monotonic()
        signature = self.reproduce(change)
        if signature & self._aim:
            outcome: Outcome = "the same"
        else:
            outcome = "fixed" if signature <= self.usual else "another failure"
        seconds = time.monotonic() - began
        self.made.append(Experiment(change.sentence, outcome, seconds, signature, change.generates_code))
        return outcome

    def signature_under(self, change: Change) -> Signature:
        """Return what fails under a change: what was seen when it was tried last, or now.

        Raises:
            OutOfTimeError: it was not tried, and no more may be.
        """
        tried = [one for one in self.made if one.sentence == change.sentence]
        if not tried:
            self.outcome_of(change)
        return (tried or self.made)[-1].signature

    def known_outcome(self, change: Change) -> Outcome | None:
        """Return what became of the failure when ``change`` was tried last, if it was."""
        return next((one.outcome for one in reversed(self.made) if one.sentence == change.sentence), None)

    def fixes(self, change: Change) -> bool:
        """Say whether the failure is gone under ``change``; another failure in its place says nothing."""
        return self.outcome_of(change) == "fixed"

    def fails(self, change: Change) -> bool:
        """Say whether the same still fails under ``change``."""
        return self.outcome_of(change) == "the same"


def is_exception(signature: Signature) -> bool:
    """Return whether what fails is an exception, and no comparison."""
    return any(part.startswith(RAISED) for part in signature)


def _order(part: str) -> tuple[bool, str]:
    """Return what sorts the parts of a signature: the first call comes before the second."""
    return "second call" in part, part.partition(" of ")[2] or part


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

    First by halves, which takes log2(n) experiments where one step alone is to blame; else by delta debugging (Zeller
    and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002), which needs no step to be alone.

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
