"""A campaign of sequences: draw, play, and go on past what is found. Needs the ``hypothesis`` package."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_regional.fuzz.budget import Budget, Clock
from pytest_regional.fuzz.caches.findings import (
    CacheSequence,
    SequenceFinding,
    features_of_sequence,
    possible_features,
    reduce_sequence,
)
from pytest_regional.fuzz.caches.machine import sequences_for
from pytest_regional.fuzz.caches.sequences import run_sequence
from pytest_regional.fuzz.campaign import CampaignResult
from pytest_regional.fuzz.findings.folder import FindingStore, installed_versions, signature_of
from pytest_regional.fuzz.oracles import OracleViolationError

if TYPE_CHECKING:
    from pytest_regional.harness.regional import Regional


@dataclass
class CacheCampaign:
    """One campaign against the caches of one backend in one mode.

    Attributes:
        regional: the harness.
        budget: how many sequences, or how long.
        seed: where the draws start.
        backend: the backend, as ``--regional-backend`` takes it.
        mode: the mode that sequences run in.
        processes: whether some compiles happen in new processes; not in mode ``interpret``, whose interpreted regions
            are of one process.
        everything: whether sequences hold what the backend disclaims as well.
        known: gives the findings of earlier campaigns, and of other shards of this one; asked again before a failure is
            taken for new.
        reduce_seconds: how long one finding may be reduced.
        found: called with each new finding at once.
        progress: called after each sequence with the result so far.
        stopped: asked before each sequence: whether to end here. A ``KeyboardInterrupt`` ends the campaign as well.
    """

    regional: Regional
    budget: Budget
    seed: int
    backend: str = "reference"
    mode: str = "native"
    processes: bool = True
    everything: bool = False
    known: Callable[[], Iterable[SequenceFinding]] = tuple
    reduce_seconds: float = 60.0
    found: Callable[[SequenceFinding], Any] | None = None
    progress: Callable[[CampaignResult, Clock], Any] | None = None
    stopped: Callable[[], bool] = bool

    def run(self) -> CampaignResult:
        """Draw and play sequences until the budget is spent; one that breaks the model ends there."""
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
        drawn = sequences_for(self.regional, self.seed, processes=self.processes, everything=self.everything)
        while not clock.over:
            if self.stopped():
                raise KeyboardInterrupt
            clock.spent += 1
            self._result.examples += 1
            self._one(next(drawn))
            self._result.seconds = clock.seconds
            if self.progress is not None:
                self.progress(self._result, clock)

    def _one(self, sequence: CacheSequence) -> None:
        seen = self._broken(sequence)
        if seen is None:
            return
        violation, executed = seen
        # A defect may show between the last compile and any other.
        known = self._store.explanation(signature_of(violation), *possible_features(executed))
        finding = known or self._reduced(executed, sequence, violation)
        self._result.hits[finding.name] += 1

    def _reduced(
        self, sequence: CacheSequence, found: CacheSequence, violation: OracleViolationError
    ) -> SequenceFinding:
        begin = time.monotonic()
        wanted = signature_of(violation)

        def still_fails(shorter: CacheSequence) -> bool:
            if self.stopped():
                raise KeyboardInterrupt
            seen = self._broken(shorter)
            return seen is not None and signature_of(seen[0]) == wanted

        try:
            reduced = reduce_sequence(sequence, still_fails, seconds=self._clock.time_for(self.reduce_seconds))
        except KeyboardInterrupt:
            self._store.enter(self._finding(sequence, found, violation))  # as it is, rather than not at all
            raise
        last = self._broken(reduced)
        self._result.reducing += time.monotonic() - begin
        return self._store.enter(self._finding(reduced, found, last[0] if last else violation))

    def _finding(
        self, reduced: CacheSequence, found: CacheSequence, violation: OracleViolationError
    ) -> SequenceFinding:
        return SequenceFinding(
            signature_of(violation).with_features(features_of_sequence(reduced)),
            reduced,
            found,
            violation.detail,
            backend=self.backend,
            device=self.regional.device_under_test.name,
            mode=self.mode,
            versions=installed_versions(),
        )

    def _broken(self, sequence: CacheSequence) -> tuple[OracleViolationError, CacheSequence] | None:
        """Execute ``sequence``; return what broke the model and the events up to that, None where nothing did."""
        events = iter(sequence)
        try:
            run_sequence(self.regional, events, mode=self.mode)
        except OracleViolationError as violation:
            return violation, sequence[: len(sequence) - len(list(events))]
        return None


__all__ = ["CacheCampaign"]
