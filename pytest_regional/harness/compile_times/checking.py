"""``assert_compile_time``: how long one program compiles, as a ratio to another, to another backend or to a record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_regional._errors import RegionalError, RegionalRuntimeError
from pytest_regional._ratios import Ratio, ratio_of
from pytest_regional._text import plural
from pytest_regional._torch.compile_phases import PHASES, TOTAL
from pytest_regional.harness.compile_times.measuring import Measured
from pytest_regional.harness.compile_times.record import CompileTimes

#: Compiles of each side with which an interval exists at all: 1 of 252 orders of five and five times is an extreme one.
LEAST_REPEATS = 5

#: Each look has an error of 0.5 % on either side, and there are three: after ``repeat`` compiles, twice and four times.
_ERROR, _LOOKS = 0.005, (1, 2, 4)

#: How many graphs and regions a message names.
_NAMED = 3


class CompileTimeError(RegionalError, AssertionError):
    """A program compiles for too long; the message says in which phase, and by how much."""


class UndecidedCompileTimeError(CompileTimeError):
    """Compiles take too different times to say whether a ratio is within its limit."""


@dataclass(frozen=True)
class CompileTimeCheck:
    """A ratio of times, and what it is allowed to be.

    Attributes:
        new: the times in the numerator.
        old: those in the denominator.
        phase: a phase, or ``"total"``.
        at_most: the largest ratio that is allowed.
    """

    new: CompileTimes
    old: CompileTimes
    phase: str
    at_most: float

    @property
    def ratio(self) -> Ratio:
        """The ratio, with an interval in which it lies with a probability of 99 %."""
        return ratio_in(self.new, self.old, self.phase)

    @property
    def outcome(self) -> Literal["within", "slower", "undecided"]:
        """What the interval says about the limit."""
        if self.ratio.low > self.at_most:
            return "slower"
        return "within" if self.ratio.high <= self.at_most else "undecided"

    def error(self) -> CompileTimeError:
        """Return the error of a check that did not end within its limit."""
        if self.outcome == "slower":
            return CompileTimeError("\n".join([self._sentence(), *self._table(), *self._slowest()]))
        advice = (
            "Times differ too much from compile to compile. Measure CPU time (clock='cpu'), run the test alone on an "
            "idle machine, give more compiles (repeat=), check the phase that matters (phase=), or allow a ratio "
            "further from the measured one."
        )
        return UndecidedCompileTimeError("\n".join([self._sentence(), advice, *self._table(), *self._slowest()]))

    def _sentence(self) -> str:
        new, old, phase = self.new, self.old, self.phase
        of = "compile time" * (new.clock == "wall") or "CPU time of compiles"
        of = of if phase == TOTAL else f"{of} in phase {phase}"
        head = f"{of} of {new.program} on {new.backend}: {self.ratio} times that of {old.program} on {old.backend}"
        verdict = "more than is allowed" if self.outcome == "slower" else "undecided whether that is allowed"
        worst = self._worst() if phase == TOTAL else ""
        grew = f"; phase {worst} grew most" if worst else ""
        compiles = plural(len(new.compiles), "compile")
        return f"{head}, {verdict}: at most {self.at_most:g}{grew} ({compiles}, 99 % interval)"

    def _worst(self) -> str:
        """Return the phase that adds most to the difference."""
        grown = {name: time.median - self.old.phase(name).median for name, time in self.new.phases.items()}
        worst = max(grown, key=lambda name: grown[name])
        return worst if grown[worst] > 0 else ""

    def _table(self) -> Iterator[str]:
        yield f"  {'phase':<13} {'this':>20} {'against':>20}  ratio"
        for name in (TOTAL, *PHASES):
            if name in self.new.not_measured:
                yield f"  {name:<13} not measured with this torch"
                continue
            times = self.new.phase(name), self.old.phase(name)
            ratio = str(ratio_in(self.new, self.old, name)) if all(min(one.seconds) > 0 for one in times) else "-"
            cells = [f"{one.median:.3f} s +- {one.noise:.0%}" for one in times]
            yield f"  {name:<13} {cells[0]:>20} {cells[1]:>20}  {ratio}"

    def _slowest(self) -> Iterator[str]:
        parts = list(self.new.parts(self.phase).items())[:_NAMED]
        if parts:
            yield "slowest: " + ", ".join(f"{what} {time.median:.3f} s" for what, time in parts)


def ratio_in(new: CompileTimes, old: CompileTimes, phase: str) -> Ratio:
    """Return the ratio of the times of a phase.

    Raises:
        RegionalRuntimeError: it is not measured, or a compile spends no time in it.
    """
    for one in (new, old):
        if phase in one.not_measured:
            raise RegionalRuntimeError(f"this torch does not tell phase {phase} from others, so it has no time")
        if not one.compiles or min(one.phase(phase).seconds) <= 0:
            raise RegionalRuntimeError(f"{one.program} on {one.backend} spends no time in phase {phase}: no ratio")
    return ratio_of(new.phase(phase).seconds, old.phase(phase).seconds, _ERROR)


def check(new: Measured, old: Measured | CompileTimes, phase: str, at_most: float, repeat: int) -> CompileTimeCheck:
    """Measure until the ratio is known to be within its limit or not, at most four times ``repeat`` compiles.

    Args:
        new: what is checked.
        old: what it is compared with: compiled in turns with it, or a record.
        phase: a phase, or ``"total"``.
        at_most: the largest ratio that is allowed.
        repeat: compiles of each before the first look.

    Raises:
        RegionalRuntimeError: the phase has no time.
    """
    sides = [new, old] if isinstance(old, Measured) else [new]
    for side in sides:
        side.warm_up()
    for times in _LOOKS:
        while len(new.compiles) < repeat * times:
            _measure_in_turns(sides)
        known = CompileTimeCheck(new.times, old.times if isinstance(old, Measured) else old, phase, at_most)
        if known.outcome != "undecided":
            break
    return known


def _measure_in_turns(sides: Sequence[Measured]) -> None:
    """Compile each once; who is first changes, so that neither has the cooler processor."""
    first = len(sides[0].compiles) % 2
    for side in reversed(sides) if first else sides:
        side.measure()
