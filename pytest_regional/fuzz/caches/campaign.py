"""Sequences of cache operations as the subject of a campaign."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_regional.fuzz.caches.findings import (
    CacheSequence,
    SequenceFinding,
    features_of_sequence,
    possible_features,
    reduce_sequence,
)
from pytest_regional.fuzz.caches.random_sequences import sequences_for
from pytest_regional.fuzz.caches.sequences import Event, run_sequence
from pytest_regional.fuzz.campaign import Failure, Known
from pytest_regional.fuzz.findings.folder import AnyFinding, installed_versions, signature_of
from pytest_regional.fuzz.oracles import OracleViolationError

if TYPE_CHECKING:
    from pytest_regional.harness.regional import Regional


@dataclass
class CacheSequences:
    """Sequences of cache operations on one backend in one mode, against a model of what has to answer.

    Attributes:
        regional: the harness.
        backend: the backend, as ``--regional-backend`` takes it.
        mode: the mode that sequences run in.
        processes: whether some compiles happen in new processes; not in mode ``interpret``, whose interpreted regions
            are of one process.
        everything: whether sequences hold what the backend disclaims as well.
    """

    regional: Regional
    backend: str = "reference"
    mode: str = "native"
    processes: bool = True
    everything: bool = False
    unit: str = "sequence"

    def draw(self, seed: int) -> Iterator[CacheSequence]:
        """Yield sequences without end, the same for the same seed."""
        return sequences_for(self.regional, seed, processes=self.processes, everything=self.everything)

    def needs(self, example: CacheSequence) -> frozenset[str]:
        """Return nothing: only what the backend claims is drawn."""
        return frozenset()

    def shows(self, finding: AnyFinding, example: CacheSequence) -> bool:
        """Return False: which compile fails is not known before the sequence runs."""
        return False

    def explains(self, finding: AnyFinding) -> bool:
        """Return whether ``finding`` is a sequence's, on this backend."""
        return isinstance(finding, SequenceFinding) and finding.backend == self.backend

    def check(self, example: CacheSequence, known: Known) -> Failure[CacheSequence] | None:
        """Execute the sequence; return what breaks the model, and the events up to that."""
        events = iter(example)
        violation = self._violation(events)
        if violation is None:
            return None
        executed = example[: len(example) - len(list(events))]
        # A defect may show between the last compile and any other.
        return None if known(violation, *possible_features(executed)) else Failure(violation, executed)

    def check_again(self, example: CacheSequence, oracle: str, *, blame: bool = False) -> OracleViolationError | None:
        """Execute the sequence once more; there is one oracle, and no region to blame."""
        return self._violation(iter(example))

    def reduce(
        self, example: CacheSequence, still_fails: Callable[[CacheSequence], bool], seconds: float
    ) -> CacheSequence:
        """Return a shorter sequence that ``still_fails``."""
        return reduce_sequence(example, still_fails, seconds=seconds)

    def finding(
        self, reduced: CacheSequence, original: CacheSequence, violation: OracleViolationError
    ) -> SequenceFinding:
        """Return the finding that ``violation`` is."""
        return SequenceFinding(
            signature_of(violation).with_features(features_of_sequence(reduced)),
            reduced,
            original,
            violation.detail,
            backend=self.backend,
            device=self.regional.device_under_test.name,
            mode=self.mode,
            versions=installed_versions(),
        )

    def _violation(self, events: Iterator[Event]) -> OracleViolationError | None:
        try:
            run_sequence(self.regional, events, mode=self.mode)
        except OracleViolationError as violation:
            return violation
        return None


__all__ = ["CacheSequences"]
