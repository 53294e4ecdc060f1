"""The fuzzer against one mutant: seeded programs, one after the other, judged by all laws."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from bench.mutants.needs import meets
from bench.mutants.planting import Mutant, spec_of
from bench.mutants.verdict import Alarm, Verdict, is_intended_law
from pytest_regional.backends.spec import BackendSpec
from pytest_regional.fuzz.budget import Budget
from pytest_regional.fuzz.caches.machine import run_cache_machine
from pytest_regional.fuzz.draw.random_rows import random_program
from pytest_regional.fuzz.model.program import Program
from pytest_regional.fuzz.modes import in_lane
from pytest_regional.fuzz.oracles import LAWS, BadProgramError, LawBrokenError, judge
from pytest_regional.harness.regional import Regional, harness

SEED = 20251122
DEVICES = {"structure": "cpu", "fast": "cuda-emulated", "full": "cpu"}

#: The state machine of caches, whose examples are histories; it stands among the lanes, and is a law of its own.
CACHES = "caches"

#: Alarms that do not count, after which only the intended laws are asked: the rest is known to complain.
OTHERS = 3


class OutOfTime(BaseException):
    """The time for one program is up; no law may take it for an error of the backend."""


class Pool:
    """Seeded programs, the same for every mutant, drawn when first asked for."""

    def __init__(self, seed: int = SEED) -> None:
        self._random = random.Random(seed)
        self._known: list[Program] = []

    def __getitem__(self, number: int) -> Program:
        while len(self._known) <= number:
            self._known.append(random_program(self._random))
        return self._known[number]


@dataclass
class Hunt:
    """One mutant and the programs that it is judged by.

    Attributes:
        mutant: what is judged.
        pool: the programs.
        examples: how many there are, all lanes together.
        seconds: for the whole hunt.
        each: for one program.
        lanes: those of the mutant's that may be used; the first takes half of the examples where there are several.
    """

    mutant: Mutant
    pool: Sequence[Program] | Pool
    examples: int = 500
    seconds: float = 120.0
    each: float = 60.0
    lanes: Sequence[str] = ("structure", CACHES, "fast")
    others: list[Alarm] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tried: int = 0
    judged: int = 0

    def run(self) -> Verdict:
        """Judge programs until one kills the mutant, or the budget is spent.

        Raises:
            PlantingError: the mutant does not fit; inside a compile that would look like the backend's own failure.
        """
        for patch in self.mutant.patches:
            patch.owner()
        intended = [law for law in self.mutant.laws if law in (*LAWS, CACHES)]
        if not intended:
            return Verdict("not asked", notes=(f"no law covers it (meant: {', '.join(self.mutant.laws) or 'none'})",))
        began = time.monotonic()
        self.mutant.planted.calls.clear()
        kill, timed_out = self._through_lanes(intended, began)
        counts = self.judged > 0 and any(patch.counted for patch in self.mutant.patches)
        called = bool(self.mutant.planted.calls) or not counts
        if not self.judged:
            self.notes.append(f"no program has what the fault needs: {', '.join(self.mutant.needs)}")
        outcome = "killed" if kill else "timeout" if timed_out else "survived" if called else "never called"
        seconds = round(time.monotonic() - began, 1)
        return Verdict(outcome, kill, tuple(self.others), self.tried, seconds, tuple(self.notes))

    def _through_lanes(self, intended: Sequence[str], began: float) -> tuple[Alarm | None, bool]:
        lanes = [lane for lane in self.mutant.lanes if lane in self.lanes]
        plan = [(lane, laws) for lane in lanes if (laws := _judged_in(lane, intended))]
        for position, (lane, laws) in enumerate(plan):
            left = len(plan) - position
            until = time.monotonic() + (self.seconds - (time.monotonic() - began)) / left
            hunt = self._histories if lane == CACHES else self._in_lane
            kill, timed_out = hunt(lane, laws, until, (self.examples - self.tried) // left)
            if kill or timed_out:
                return kill, timed_out
        return None, False

    def _histories(self, lane: str, laws: Sequence[str], until: float, examples: int) -> tuple[Alarm | None, bool]:
        """Run histories of the state machine; the first that breaks the model counts."""
        before = self.tried
        with harness(spec_of(self.mutant), "cpu") as regional:
            self._count_resets(regional)
            try:
                with deadline(max(until - time.monotonic(), 1.0)), in_lane(regional, "structure"):
                    run_cache_machine(regional, Budget(examples=examples), SEED, processes=False)
            except LawBrokenError as broken:
                return Alarm(broken.law, "LawBrokenError", broken.origin, self.tried, lane), False
            except OutOfTime:
                return None, self.tried == before
            except Exception as error:  # noqa: BLE001 - told, and no kill: no law has spoken
                self.others.append(Alarm("state machine", type(error).__name__, str(error)[:200], self.tried, lane))
        return None, False

    def _count_resets(self, regional: Regional) -> None:
        """Count histories: each begins with a reset."""
        reset = regional.reset

        def counted() -> None:
            self.tried += 1
            self.judged += 1
            reset()

        regional.reset = counted  # type: ignore[method-assign]

    def _in_lane(self, lane: str, laws: Sequence[str], until: float, examples: int) -> tuple[Alarm | None, bool]:
        with harness(spec_of(self.mutant), DEVICES[lane]) as regional:
            for number in range(examples):
                if time.monotonic() > until:
                    break
                self.tried += 1
                if self.mutant.needs and not meets(self.pool[number], self.mutant.needs):
                    continue
                self.judged += 1
                try:
                    with deadline(self.each):
                        kill = self._judged(regional, lane, laws, self.pool[number])
                except OutOfTime:
                    self.others.append(Alarm("deadline", "OutOfTime", example=self.tried, lane=lane))
                    return None, True
                if kill:
                    return kill, False
        return None, False

    def _judged(self, regional: Regional, lane: str, laws: Sequence[str], program: Program) -> Alarm | None:
        """Return the alarm that kills; one of another law is noted, and the intended ones are asked alone."""
        asked = (_with_cheap_ones(laws), laws) if len(self.others) < OTHERS else (laws,)
        for chosen in asked:
            alarm = self._alarm(regional, lane, chosen, program)
            if alarm is None:
                return None
            if is_intended_law(self.mutant, alarm):
                return alarm if self._holds_without_fault(lane, alarm, program) else None
            self.others.append(alarm)
        return None

    def _alarm(self, regional: Regional, lane: str, laws: Any, program: Program) -> Alarm | None:
        try:
            judge(regional, program, lane=lane, laws=laws, blame=False)
        except LawBrokenError as broken:
            return Alarm(broken.law, "LawBrokenError", broken.origin, self.tried, lane)
        except BadProgramError:
            return None
        except Exception as error:  # noqa: BLE001 - whatever the harness makes of a mutant is told, and is no kill
            return Alarm("harness", type(error).__name__, str(error)[:200], self.tried, lane)
        return None

    def _holds_without_fault(self, lane: str, alarm: Alarm, program: Program) -> bool:
        """Judge the reference by the law that complained: an alarm there as well says nothing of the mutant."""
        with harness("reference", DEVICES[lane]) as regional:
            again = self._alarm(regional, lane, [alarm.source], program)
        if again is None:
            return True
        self.notes.append(f"the reference breaks {again.source} on example {self.tried} too: {again.text}")
        return False


def _with_cheap_ones(laws: Sequence[str]) -> list[str]:
    """Return ``laws`` and all others that need no compile of their own."""
    return [law.name for law in LAWS.values() if law.every == 1 or law.name in laws]


def _judged_in(lane: str, laws: Sequence[str]) -> list[str]:
    if lane == CACHES:
        return [law for law in laws if law == CACHES]
    return [law for law in laws if law != CACHES and lane in LAWS[law].lanes]


def alarms_of(
    spec: BackendSpec | str,
    pool: Sequence[Program] | Pool,
    examples: int,
    *,
    lane: str = "structure",
    each: float = 60.0,
) -> list[Alarm]:
    """Return what laws say of a backend that is right."""
    found: list[Alarm] = []
    with harness(spec, DEVICES[lane]) as regional:
        for number in range(examples):
            try:
                with deadline(each):
                    judge(regional, pool[number], lane=lane, blame=False)
            except LawBrokenError as broken:
                found.append(Alarm(broken.law, "LawBrokenError", broken.origin, number + 1, lane))
            except BadProgramError as error:
                found.append(Alarm("program", "BadProgramError", str(error)[:200], number + 1, lane))
            except OutOfTime:
                found.append(Alarm("deadline", "OutOfTime", "", number + 1, lane))
    return found


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise :class:`OutOfTime` in the main thread when the time is up."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    # Again and again: one that rings in a destructor is ignored by Python.
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


__all__ = ["Hunt", "OutOfTime", "Pool", "alarms_of", "deadline"]
