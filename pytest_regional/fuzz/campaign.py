"""A campaign: draw programs, check each, and go on past what is found.

Every failure is reduced and named by its signature. A failure that a known finding explains is counted, not reduced
again; and programs with all the features of a known finding are drawn, but mostly skipped, so that it does not
hide what else is there.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pytest_regional.fuzz.budget import Budget, Clock
from pytest_regional.fuzz.features import features_of
from pytest_regional.fuzz.findings import files
from pytest_regional.fuzz.findings.folder import AnyFinding, Finding, FindingStore, installed_versions, signature_of
from pytest_regional.fuzz.findings.provenance import reason_of
from pytest_regional.fuzz.model.claims import needs_of
from pytest_regional.fuzz.model.program import Program
from pytest_regional.fuzz.oracles import BadProgramError, OracleViolationError
from pytest_regional.fuzz.shrink.reducer import reduce_program

#: Of the programs that have all features of a known finding, the share that is checked all the same.
CHECKED_ANYWAY = 0.1

#: The backend that has nothing behind AOTAutograd.
CAPTURE = "aot_eager"

#: After so many programs one behind the other that need what the backend disclaims no other is waited for.
UNCLAIMED_IN_A_ROW = 1000

#: How many hits one finding may have before its programs are skipped.
MANY_HITS = 2


@dataclass
class CampaignResult:
    """What came of a campaign.

    Attributes:
        examples: programs that were checked.
        skipped_known: programs that were not, since a known finding is in the way.
        unclaimed: by capability, how many programs were not checked because they need what the backend disclaims.
        refused: by reason, how many programs eager refuses, which the generator should not make. They are among the
            examples, and no finding.
        seconds: how long it took.
        reducing: seconds of it that went into reducing.
        findings: what is new, in order of discovery.
        discovered_at: by a finding's name, the number of the program that showed it first.
        hits: by a finding's name, how many programs failed so, known findings included.
        seed: what the programs were drawn from.
        interrupted: whether somebody ended it before its time.
    """

    seed: int
    interrupted: bool = False
    examples: int = 0
    skipped_known: int = 0
    seconds: float = 0.0
    reducing: float = 0.0
    findings: list[AnyFinding] = field(default_factory=list)
    discovered_at: dict[str, int] = field(default_factory=dict)
    hits: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    unclaimed: Counter[str] = field(default_factory=Counter)

    @property
    def bad(self) -> int:
        """How many programs eager refuses."""
        return self.refused.total()


class Check(Protocol):
    """What checks programs: :func:`pytest_regional.fuzz.oracles.check`, with a harness and a mode given."""

    def __call__(
        self,
        program: Program,
        *,
        oracles: Collection[str] | None,
        blame: bool,
        known: Callable[[OracleViolationError], bool],
    ) -> Any:
        """Raise :class:`OracleViolationError` for the first violated oracle that is not ``known``."""


@dataclass
class Campaign:
    """One campaign against one backend in one mode.

    Attributes:
        check: checks a program; see :class:`Check`.
        draw: yields programs for a seed, without end.
        budget: how long.
        seed: where the draws start.
        backend: the backend, as ``--regional-backend`` takes it.
        device: the device by name.
        mode: the mode that ``check`` checks in.
        oracles: names of the oracles to check; all by default.
        without: capabilities that the backend disclaims: a program that needs one is skipped, and none is reduced
            to one that does.
        known: gives the findings of earlier campaigns, and of other shards of this one; asked again before a failure is
            taken for new.
        reduce_seconds: how long one finding may be reduced.
        running: a file that holds the program while it is checked; what a crash leaves there is what crashed.
        found: called with each new finding at once.
        progress: called after each program with the result so far.
        stopped: asked before each program: whether to end here. A ``KeyboardInterrupt`` ends the campaign as well.
    """

    check: Check
    draw: Callable[[int], Iterator[Program]]
    budget: Budget
    seed: int
    backend: str = "reference"
    device: str = "cpu"
    mode: str = "native"
    oracles: Collection[str] | None = None
    without: Collection[str] = ()
    known: Callable[[], Iterable[Finding]] = tuple
    reduce_seconds: float = 60.0
    running: Path | None = None
    found: Callable[[Finding], Any] | None = None
    progress: Callable[[CampaignResult, Clock], Any] | None = None
    stopped: Callable[[], bool] = bool

    def run(self) -> CampaignResult:
        """Draw and check until the budget is spent, or somebody interrupts."""
        self._chance = random.Random(self.seed)
        self._result = CampaignResult(self.seed)
        self._store = FindingStore(self.known, self._result, self.found)
        self._clock = clock = self.budget.start()
        try:
            self._spend(clock)
        except KeyboardInterrupt:
            self._result.interrupted = True
        self._result.seconds = clock.seconds
        return self._result

    def _spend(self, clock: Clock) -> None:
        programs, in_a_row = self.draw(self.seed), 0
        while not clock.over:
            if self.stopped():
                raise KeyboardInterrupt
            program = next(programs)
            if needs := self._unclaimed(program):
                self._result.unclaimed.update(needs)
                in_a_row += 1
                if in_a_row == UNCLAIMED_IN_A_ROW:
                    break
                continue
            in_a_row = 0
            if self._is_passed_over(program):
                self._result.skipped_known += 1
                continue
            clock.spent += 1
            self._result.examples += 1
            self._one(program)
            self._result.seconds = clock.seconds
            if self.progress is not None:
                self.progress(self._result, clock)

    def _unclaimed(self, program: Program) -> frozenset[str]:
        """Return what ``program`` needs that the backend disclaims."""
        return needs_of(program).intersection(self.without) if self.without else frozenset()

    def _is_passed_over(self, program: Program) -> bool:
        features = features_of(program)
        often = [finding for finding in self._store.known if self._result.hits[finding.name] >= MANY_HITS]
        if not any(finding.features <= features for finding in often):
            return False
        return self._chance.random() >= CHECKED_ANYWAY

    def _one(self, program: Program) -> None:
        features = features_of(program)

        def known(violation: OracleViolationError) -> bool:
            explained = self._store.explanation(signature_of(violation), features)
            if explained is not None:
                self._result.hits[explained.name] += 1
            return explained is not None

        try:
            violation = self._broken(program, oracles=self.oracles, known=known)
        except BadProgramError as error:
            self._result.refused[reason_of(error)] += 1
            return
        if violation is not None:
            found = self._reduced(program, violation)
            self._result.hits[found.name] += 1

    def _broken(
        self,
        program: Program,
        *,
        oracles: Collection[str] | None,
        blame: bool = False,
        known: Callable[[OracleViolationError], bool] = lambda violation: False,
    ) -> OracleViolationError | None:
        try:
            with self._noted(program):
                self.check(program, oracles=oracles, blame=blame, known=known)
        except OracleViolationError as violation:
            return violation
        return None

    @contextlib.contextmanager
    def _noted(self, program: Program) -> Iterator[None]:
        """Keep the program in a file while it is checked: a compiler that crashes takes this process with it."""
        if self.running is None:
            yield
            return
        files.save(program, self.running)
        try:
            yield
        finally:
            self.running.unlink(missing_ok=True)

    def _reduced(self, program: Program, violation: OracleViolationError) -> Finding:
        begin = time.monotonic()
        wanted = signature_of(violation)

        def still_fails(smaller: Program) -> bool:
            if self.stopped():
                raise KeyboardInterrupt
            if self._unclaimed(smaller):
                return False
            try:
                seen = self._broken(smaller, oracles=(wanted.oracle,))
            except BadProgramError:
                return False  # no program of the generator's
            if seen is None or signature_of(seen) != wanted:
                return False
            return seen.without_backend == violation.without_backend

        try:
            reduced = reduce_program(program, still_fails, seconds=self._clock.time_for(self.reduce_seconds))
        except KeyboardInterrupt:
            self._store.enter(self._finding(program, program, violation))  # as it is, rather than not at all
            raise
        # Once more, now with the question which region is to blame.
        last = self._broken(reduced, oracles=(wanted.oracle,), blame=True)
        self._result.reducing += time.monotonic() - begin
        return self._store.enter(self._finding(reduced, program, last or violation))

    def _finding(self, reduced: Program, found: Program, violation: OracleViolationError) -> Finding:
        # What AOTAutograd breaks without the backend is kept, and checked again, as AOTAutograd's.
        where = (CAPTURE, "cpu", "native") if violation.without_backend else (self.backend, self.device, self.mode)
        backend, device, mode = where
        return Finding(
            signature_of(violation, reduced),
            reduced,
            found,
            violation.detail,
            violation.region,
            backend=backend,
            device=device,
            mode=mode,
            versions=installed_versions(),
        )


__all__ = ["CAPTURE", "Campaign", "CampaignResult", "Check"]
