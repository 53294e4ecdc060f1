"""The fuzzer against one mutant: seeded programs, one after the other, checked against all oracles."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_regional import BackendSpec, BadProgramError, Regional
from pytest_regional._base.limits import RegionalTimeoutError
from pytest_regional.fuzz.budget import Budget, cpu_limit
from pytest_regional.fuzz.caches.campaign import run_random_sequences
from pytest_regional.fuzz.draw.graphs import random_program
from pytest_regional.fuzz.model.program import Program
from pytest_regional.fuzz.oracles import ORACLES, OracleViolationError, check
from pytest_regional.fuzz.settings import in_mode
from pytest_regional.harness.regional import harness
from tests.faults.needs import meets
from tests.faults.planting import Mutant, spec_of
from tests.faults.verdict import Alarm, Verdict, is_intended_oracle

SEED = 20251122
DEVICES = {"interpret": "cpu", "emulated": "cuda-emulated", "native": "cpu"}

#: Random sequences of cache operations: listed as a mode, and an oracle of its own.
CACHES = "caches"

#: Alarms that do not count, after which only the intended oracles are asked: the rest is known to complain.
OTHERS = 3


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
    """One mutant and the programs that it is checked with.

    Attributes:
        mutant: what is checked.
        pool: the programs.
        examples: how many there are, all modes together.
        seconds: of processor time, for the whole hunt.
        each: for one program.
        modes: those of the mutant's that may be used; the first takes half of the examples where there are several.
    """

    mutant: Mutant
    pool: Sequence[Program] | Pool
    examples: int = 500
    seconds: float = 120.0
    each: float = 60.0
    modes: Sequence[str] = ("interpret", CACHES, "emulated")
    others: list[Alarm] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tried: int = 0
    checked: int = 0

    def run(self) -> Verdict:
        """Check programs until one kills the mutant, or the budget is spent.

        Raises:
            PlantingError: the mutant does not fit; inside a compile that would look like the backend's own failure.
        """
        for patch in self.mutant.patches:
            patch.owner()
        intended = [oracle for oracle in self.mutant.oracles if oracle in (*ORACLES, CACHES)]
        if not intended:
            return Verdict(
                "not asked", notes=(f"no oracle covers it (meant: {', '.join(self.mutant.oracles) or 'none'})",)
            )
        began = time.process_time()
        self.mutant.planted.calls.clear()
        kill, timed_out = self._through_modes(intended, began)
        counts = self.checked > 0 and any(patch.counted for patch in self.mutant.patches)
        called = bool(self.mutant.planted.calls) or not counts
        if not self.checked:
            self.notes.append(f"no program has what the fault needs: {', '.join(self.mutant.needs)}")
        outcome = "killed" if kill else "timeout" if timed_out else "survived" if called else "never called"
        seconds = round(time.process_time() - began, 1)
        return Verdict(outcome, kill, tuple(self.others), self.tried, seconds, tuple(self.notes))

    def _through_modes(self, intended: Sequence[str], began: float) -> tuple[Alarm | None, bool]:
        modes = [mode for mode in self.mutant.modes if mode in self.modes]
        plan = [(mode, oracles) for mode in modes if (oracles := _checked_in(mode, intended))]
        for position, (mode, oracles) in enumerate(plan):
            left = len(plan) - position
            until = time.process_time() + (self.seconds - (time.process_time() - began)) / left
            hunt = self._sequences if mode == CACHES else self._in_mode
            kill, timed_out = hunt(mode, oracles, until, (self.examples - self.tried) // left)
            if kill or timed_out:
                return kill, timed_out
        return None, False

    def _sequences(self, mode: str, oracles: Sequence[str], until: float, examples: int) -> tuple[Alarm | None, bool]:
        """Run random sequences; the first that breaks the model counts."""
        before = self.tried
        with harness(spec_of(self.mutant), "cpu") as regional:
            self._count_resets(regional)
            try:
                with cpu_limit(max(until - time.process_time(), 1.0)), in_mode(regional, "interpret"):
                    run_random_sequences(regional, Budget(examples=examples), SEED, processes=False)
            except OracleViolationError as violation:
                return Alarm(violation.oracle, "OracleViolationError", violation.origin, self.tried, mode), False
            except RegionalTimeoutError:
                return None, self.tried == before
            except Exception as error:  # noqa: BLE001 - told, and no kill: no oracle has spoken
                self.others.append(Alarm("sequences", type(error).__name__, str(error)[:200], self.tried, mode))
        return None, False

    def _count_resets(self, regional: Regional) -> None:
        """Count sequences: each begins with a reset."""
        reset = regional.reset

        def counted() -> None:
            self.tried += 1
            self.checked += 1
            reset()

        regional.reset = counted  # type: ignore[method-assign]

    def _in_mode(self, mode: str, oracles: Sequence[str], until: float, examples: int) -> tuple[Alarm | None, bool]:
        with harness(spec_of(self.mutant), DEVICES[mode]) as regional:
            for number in range(examples):
                if time.process_time() > until:
                    break
                self.tried += 1
                if self.mutant.needs and not meets(self.pool[number], self.mutant.needs):
                    continue
                self.checked += 1
                try:
                    with cpu_limit(self.each):
                        kill = self._checked(regional, mode, oracles, self.pool[number])
                except RegionalTimeoutError:
                    self.others.append(Alarm("deadline", "RegionalTimeoutError", example=self.tried, mode=mode))
                    return None, True
                if kill:
                    return kill, False
        return None, False

    def _checked(self, regional: Regional, mode: str, oracles: Sequence[str], program: Program) -> Alarm | None:
        """Return the alarm that kills; one of another oracle is noted, and the intended ones are asked alone."""
        asked = (_with_cheap_ones(oracles), oracles) if len(self.others) < OTHERS else (oracles,)
        for chosen in asked:
            alarm = self._alarm(regional, mode, chosen, program)
            if alarm is None:
                return None
            if is_intended_oracle(self.mutant, alarm):
                return alarm if self._holds_without_fault(mode, alarm, program) else None
            self.others.append(alarm)
        return None

    def _alarm(self, regional: Regional, mode: str, oracles: Any, program: Program) -> Alarm | None:
        try:
            check(regional, program, mode=mode, oracles=oracles, blame=False)
        except OracleViolationError as violation:
            return Alarm(violation.oracle, "OracleViolationError", violation.origin, self.tried, mode)
        except BadProgramError:
            return None
        except Exception as error:  # noqa: BLE001 - whatever the harness makes of a mutant is told, and is no kill
            return Alarm("harness", type(error).__name__, str(error)[:200], self.tried, mode)
        return None

    def _holds_without_fault(self, mode: str, alarm: Alarm, program: Program) -> bool:
        """Check the reference against the oracle that complained: an alarm there as well says nothing of the mutant."""
        with harness("reference", DEVICES[mode]) as regional:
            again = self._alarm(regional, mode, [alarm.source], program)
        if again is None:
            return True
        self.notes.append(f"the reference breaks {again.source} on example {self.tried} too: {again.text}")
        return False


def _with_cheap_ones(oracles: Sequence[str]) -> list[str]:
    """Return ``oracles`` and all others that need no compile of their own."""
    return [oracle.name for oracle in ORACLES.values() if oracle.every == 1 or oracle.name in oracles]


def _checked_in(mode: str, oracles: Sequence[str]) -> list[str]:
    if mode == CACHES:
        return [oracle for oracle in oracles if oracle == CACHES]
    return [oracle for oracle in oracles if oracle != CACHES and mode in ORACLES[oracle].modes]


def alarms_of(
    spec: BackendSpec | str,
    pool: Sequence[Program] | Pool,
    examples: int,
    *,
    mode: str = "interpret",
    each: float = 60.0,
) -> list[Alarm]:
    """Return what oracles say of a backend that is right; what AOTAutograd gets wrong without it does not count."""
    found: list[Alarm] = []
    with harness(spec, DEVICES[mode]) as regional:
        for number in range(examples):
            try:
                with cpu_limit(each):
                    check(regional, pool[number], mode=mode, blame=False)
            except OracleViolationError as violation:
                if not violation.without_backend:
                    found.append(Alarm(violation.oracle, "OracleViolationError", violation.origin, number + 1, mode))
            except BadProgramError as error:
                found.append(Alarm("program", "BadProgramError", str(error)[:200], number + 1, mode))
            except RegionalTimeoutError:
                found.append(Alarm("deadline", "RegionalTimeoutError", "", number + 1, mode))
    return found


__all__ = ["Hunt", "Pool", "alarms_of"]
