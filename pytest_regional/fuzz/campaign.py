"""A campaign: draw examples, check each, and go on past what is found.

What an example is says the subject: a program (:class:`Programs`), or a sequence of cache operations
(:class:`~pytest_regional.fuzz.caches.campaign.CacheSequences`). Every failure is reduced and named by its signature. A
failure that a known finding explains is counted, not reduced again. Examples that show nothing but a known finding are
drawn and mostly skipped, so that it does not hide what else is there.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from pytest_regional._base.limits import RegionalTimeoutError
from pytest_regional.backends.spec import PARTITIONERS
from pytest_regional.fuzz import oracles as oracles_of_programs
from pytest_regional.fuzz.budget import Budget, Clock, cpu_limit
from pytest_regional.fuzz.findings import files
from pytest_regional.fuzz.findings.folder import (
    AnyFinding,
    Finding,
    FindingsFolder,
    FindingStore,
    features_of,
    installed_versions,
    signature_of,
)
from pytest_regional.fuzz.model.claims import needs_of
from pytest_regional.fuzz.model.program import Program
from pytest_regional.fuzz.oracles import BadProgramError, OracleViolationError
from pytest_regional.fuzz.settings import WITHOUT_DYNAMO
from pytest_regional.fuzz.shrink import reduce_program
from pytest_regional.harness.blame.culprit import Culprit
from pytest_regional.harness.blame.reproducing import culprit_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from pytest_regional.harness.record import GeneratedSource
    from pytest_regional.harness.regional import Regional

#: Of the examples that show a known finding, the share that is checked nevertheless.
CHECKED_ANYWAY = 0.1

#: A campaign ends after so many examples in a row that need what the backend disclaims.
UNCLAIMED_IN_A_ROW = 1000

#: How many hits one finding may have before its examples are skipped.
MANY_HITS = 2

T = TypeVar("T")

#: Says whether a known finding explains a violation of an example that has one of some sets of features.
Known = Callable[..., bool]


@dataclass
class CampaignResult:
    """What came of a campaign.

    Attributes:
        seed: what the examples were drawn from.
        interrupted: whether somebody ended it before its time.
        examples: how many were checked.
        skipped_known: how many were not, since they show a known finding.
        seconds: how long it took.
        reducing: seconds of it that went into reducing.
        findings: what is new, in order of discovery.
        scripts: by a finding's name, the script that shows it.
        discovered_at: by a finding's name, the number of the example that showed it first.
        code: by a finding's name, the code that was generated for the example that shows it.
        hits: by a finding's name, how many examples failed so, known findings included.
        refused: by reason, how many programs eager refuses, which the generator should not make. They are among the
            examples, and no finding.
        unclaimed: by capability, how many were not checked because they need what the backend disclaims.
        unconfirmed: by oracle and origin, how many violations Dynamo's path does not show. They are no findings.
    """

    seed: int
    interrupted: bool = False
    examples: int = 0
    skipped_known: int = 0
    seconds: float = 0.0
    reducing: float = 0.0
    findings: list[AnyFinding] = field(default_factory=list)
    scripts: dict[str, str] = field(default_factory=dict)
    discovered_at: dict[str, int] = field(default_factory=dict)
    code: dict[str, Sequence[GeneratedSource]] = field(default_factory=dict)
    hits: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    unclaimed: Counter[str] = field(default_factory=Counter)
    unconfirmed: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Failure(Generic[T]):
    """A violation that no known finding explains.

    Attributes:
        violation: what was found.
        example: the part of the example that was run when it came.
        confirmed: whether it is found on a user's way, too. A mode without Dynamo may show one that Dynamo's path does
            not: no finding.
    """

    violation: OracleViolationError
    example: T
    confirmed: bool = True


class Subject(Protocol[T]):
    """What a campaign draws, checks and reduces; ``unit`` is the word for one example."""

    unit: str

    def draw(self, seed: int) -> Iterator[T]:
        """Yield examples without end, the same for the same seed."""

    def needs(self, example: T) -> frozenset[str]:
        """Return the capabilities that ``example`` needs and the backend disclaims."""

    def shows(self, finding: AnyFinding, example: T) -> bool:
        """Return whether ``example`` has all that ``finding`` needs to show."""

    def explains(self, finding: AnyFinding) -> bool:
        """Return whether ``finding`` is one of this kind, on this backend."""

    def check(self, example: T, known: Known) -> Failure[T] | None:
        """Check ``example``; return the first violation that is not ``known``."""

    def check_again(self, example: T, oracle: str, *, blame: bool = False) -> OracleViolationError | None:
        """Check ``example`` against one oracle; ``blame`` asks what is to blame, too."""

    def reduce(self, example: T, still_fails: Callable[[T], bool], seconds: float) -> T:
        """Return a smaller example that ``still_fails``."""

    def finding(self, reduced: T, original: T, violation: OracleViolationError) -> AnyFinding:
        """Return the finding that ``violation`` is."""


@dataclass
class Campaign(Generic[T]):
    """One campaign against one backend in one mode.

    Attributes:
        subject: what is drawn, checked and reduced.
        budget: how long.
        seed: where the draws start.
        folder: where findings are kept; what earlier campaigns and other shards left there is known. It is read again
            before a failure is taken for new.
        reduce_seconds: how long one finding may be reduced.
        part: the first example that is checked, from 0; after it every one that is ``parts`` further.
        parts: how many campaigns share the examples of the seed.
        progress: called after each example with the result so far.
        stopped: called before each example: whether to end here. A ``KeyboardInterrupt`` ends the campaign as well.
        result: what came of it so far.
    """

    subject: Subject[T]
    budget: Budget
    seed: int
    folder: FindingsFolder | None = None
    reduce_seconds: float = 60.0
    part: int = 0
    parts: int = 1
    progress: Callable[[CampaignResult, Clock], Any] | None = None
    stopped: Callable[[], bool] = bool
    result: CampaignResult = field(init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._interrupted = False
        self.result = CampaignResult(self.seed)
        self._store = FindingStore(self._kept, self.result, self._keep)

    def run(self) -> CampaignResult:
        """Draw and check until the budget is spent, or somebody interrupts."""
        return self.check(itertools.islice(self.subject.draw(self.seed), self.part, None, self.parts))

    def check(self, examples: Iterator[T]) -> CampaignResult:
        """Check examples until they end, the budget is spent, or somebody interrupts."""
        self._clock = clock = self.budget.start()
        try:
            self._spend(clock, examples)
        except KeyboardInterrupt:
            self.result.interrupted = True
        self.result.seconds = clock.seconds
        return self.result

    def _kept(self) -> list[AnyFinding]:
        return [one for one in self.folder.readable() if self.subject.explains(one)] if self.folder else []

    def _keep(self, finding: AnyFinding) -> None:
        if self.folder is not None:
            self.result.scripts[finding.name] = str(self.folder.save_shown(finding, run=not self._interrupted))

    def _spend(self, clock: Clock, examples: Iterator[T]) -> None:
        in_a_row = 0
        while not clock.over:
            self._end_if_stopped()
            example = next(examples, None)
            if example is None:
                break
            if needs := self.subject.needs(example):
                self.result.unclaimed.update(needs)
                in_a_row += 1
                if in_a_row == UNCLAIMED_IN_A_ROW:
                    break
                continue
            in_a_row = 0
            often = (finding for finding in self._store.known if self.result.hits[finding.name] >= MANY_HITS)
            shows_known = any(self.subject.shows(finding, example) for finding in often)
            if shows_known and self._chance.random() >= CHECKED_ANYWAY:
                self.result.skipped_known += 1
                continue
            clock.spent += 1
            self.result.examples += 1
            self._one(example)
            self.result.seconds = clock.seconds
            if self.progress is not None:
                self.progress(self.result, clock)

    def _end_if_stopped(self) -> None:
        if self.stopped():
            raise KeyboardInterrupt

    def _one(self, example: T) -> None:
        try:
            failure = self.subject.check(example, self._is_known)
        except BadProgramError as error:
            self.result.refused[files.reason_of(error)] += 1
            return
        if failure is None:
            return
        if not failure.confirmed:
            unconfirmed = failure.violation
            self.result.unconfirmed[f"{unconfirmed.oracle} ({unconfirmed.stage}): {unconfirmed.origin}"] += 1
            return
        found = self._reduced(example, failure)
        self.result.hits[found.name] += 1

    def _is_known(self, violation: OracleViolationError, *features: frozenset[str]) -> bool:
        explained = self._store.explanation(signature_of(violation), *features)
        if explained is not None:
            self.result.hits[explained.name] += 1
        return explained is not None

    def _reduced(self, original: T, failure: Failure[T]) -> AnyFinding:
        begin = time.monotonic()
        violation = failure.violation
        wanted = signature_of(violation), violation.without_backend

        def still_fails(smaller: T) -> bool:
            self._end_if_stopped()
            if self.subject.needs(smaller):
                return False
            try:
                seen = self.subject.check_again(smaller, violation.oracle)
            except BadProgramError:
                return False  # no program of the generator's
            return seen is not None and (signature_of(seen), seen.without_backend) == wanted

        seconds = self._clock.time_for(self.reduce_seconds)
        try:
            reduced = self.subject.reduce(failure.example, still_fails, seconds)
        except KeyboardInterrupt:
            # As it is, rather than not at all, and at once: who asked may end the process soon.
            self._interrupted = True
            self._store.enter(self.subject.finding(failure.example, original, violation))
            raise
        # Once more, now with the question which region is to blame.
        last = self.subject.check_again(reduced, violation.oracle, blame=True)
        self.result.reducing += time.monotonic() - begin
        found = self._store.enter(self.subject.finding(reduced, original, last or violation))
        self.result.code.setdefault(found.name, (last or violation).sources)
        return found


@contextlib.contextmanager
def quiet_logs() -> Iterator[None]:
    """Keep out of logs what compilers say about programs that fail: megabytes in a campaign."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


# Programs as the subject

#: The backend that has nothing behind AOTAutograd.
CAPTURE = "aot_eager"

#: The mode in which what a mode without Dynamo finds is checked again.
CONFIRMED_IN = "interpret"

#: The origin of a violation by a check that did not end.
TOO_LONG = "longer than the time that one program may take"


def partitioned(programs: Iterator[Program], partitioners: Sequence[str], seed: int) -> Iterator[Program]:
    """Yield ``programs``, those that train and name no partitioner with one of ``partitioners``."""
    chance = random.Random(f"partitioner {seed}")
    for program in programs:
        if partitioners and program.trains and program.partitioner is None:
            yield replace(program, partitioner=chance.choice(partitioners))
        else:
            yield program


@dataclass
class Programs:
    """Programs as the subject of a campaign.

    Attributes:
        checker: checks a program: :func:`pytest_regional.fuzz.oracles.check`, with a harness and a mode given.
        drawn: yields programs for a seed, without end.
        backend: the backend, as ``--regional-backend`` takes it.
        device: the device by name.
        mode: the mode that ``checker`` checks in.
        oracles: names of the oracles to check; all by default.
        without: capabilities that the backend disclaims: a program that needs one is skipped, and none is reduced
            to one that does.
        limit: seconds of processor time that the check of one program may take; a longer one is a violation.
        running: a file that holds the program while it is checked; what a crash leaves there is what crashed.
        partitioners: one of these is drawn for each program that trains; see :attr:`Program.partitioner`.
        through_dynamo: for a mode without Dynamo, what checks programs in :data:`CONFIRMED_IN`: what ``checker`` finds
            is found there or nowhere, and all that is done with it is done there.
        blamer: searches for the step of the compile that is to blame for what a check, which it gets, raises.
    """

    checker: Callable[..., Any]
    drawn: Callable[[int], Iterator[Program]]
    backend: str = "reference"
    device: str = "cpu"
    mode: str = "native"
    oracles: Collection[str] | None = None
    without: Collection[str] = ()
    limit: float | None = None
    running: Path | None = None
    partitioners: Sequence[str] = ()
    through_dynamo: Callable[..., Any] | None = None
    blamer: Callable[[Callable[[], None]], Culprit] | None = None
    unit: str = "program"

    @classmethod
    def of(
        cls,
        regional: Regional,
        backend: str,
        mode: str,
        *,
        drawn: Callable[[int], Iterator[Program]],
        blames: bool = True,
        **options: Any,
    ) -> Self:
        """Return the programs of ``drawn``, checked on a harness in a mode.

        Args:
            regional: the harness, of ``backend``.
            backend: as the command line names it.
            mode: one of :data:`~pytest_regional.fuzz.settings.MODES`.
            drawn: yields programs for a seed, without end.
            blames: whether the step of the compile that is to blame for a finding is searched for.
            options: other attributes.
        """
        check = oracles_of_programs.check
        return cls(
            functools.partial(check, regional, mode=mode),
            drawn,
            backend,
            regional.device_under_test.name,
            mode,
            partitioners=PARTITIONERS if "partitioner" in regional.spec.variants else (),
            through_dynamo=functools.partial(check, regional, mode=CONFIRMED_IN) if mode in WITHOUT_DYNAMO else None,
            blamer=functools.partial(culprit_of, regional) if blames else None,
            **options,
        )

    def draw(self, seed: int) -> Iterator[Program]:
        """Yield programs without end, the same for the same seed."""
        return partitioned(self.drawn(seed), self.partitioners, seed)

    def needs(self, example: Program) -> frozenset[str]:
        """Return the capabilities that the program needs and the backend disclaims."""
        return needs_of(example).intersection(self.without) if self.without else frozenset()

    def shows(self, finding: AnyFinding, example: Program) -> bool:
        """Return whether the program has all features of ``finding``."""
        return finding.features <= features_of(example)

    def explains(self, finding: AnyFinding) -> bool:
        """Return whether ``finding`` is a program's, on this backend or on AOTAutograd alone."""
        return isinstance(finding, Finding) and finding.backend in (self.backend, CAPTURE)

    def check(self, example: Program, known: Known) -> Failure[Program] | None:
        """Check the program against all oracles; return the first violation that is not ``known``."""
        features = features_of(example)
        violation = self._violation(self.checker, example, self.oracles, known=lambda one: known(one, features))
        if violation is None:
            return None
        if self.through_dynamo is None:
            return Failure(violation, example)
        confirmed = self.check_again(example, violation.oracle)
        if confirmed is None:
            return Failure(violation, example, confirmed=False)
        return None if known(confirmed, features) else Failure(confirmed, example)

    def check_again(self, example: Program, oracle: str, *, blame: bool = False) -> OracleViolationError | None:
        """Check the program against one oracle, through Dynamo."""
        violation = self._violation(self.through_dynamo or self.checker, example, (oracle,), blame=blame)
        if blame and self.blamer is not None and violation is not None and violation.origin != TOO_LONG:

            def once_more() -> None:
                found = self.check_again(example, oracle)
                if found is not None:
                    raise found

            violation.culprit = self.blamer(once_more)
        return violation

    def reduce(self, example: Program, still_fails: Callable[[Program], bool], seconds: float) -> Program:
        """Return a smaller program that ``still_fails``."""
        return reduce_program(example, still_fails, seconds=seconds)

    def finding(self, reduced: Program, original: Program, violation: OracleViolationError) -> Finding:
        """Return the finding; what AOTAutograd breaks without the backend is kept, and checked again, as its own."""
        mode = self.mode if self.through_dynamo is None else CONFIRMED_IN
        backend, device = self.backend, self.device
        if violation.without_backend:
            backend, device, mode = CAPTURE, "cpu", "native"
        culprit = violation.culprit
        return Finding(
            signature_of(violation, reduced),
            reduced,
            original,
            violation.detail,
            violation.region,
            f"{culprit.sentence}\n{culprit.evidence}" if culprit else None,
            backend=backend,
            device=device,
            mode=mode,
            versions=installed_versions(),
        )

    def _violation(
        self,
        checker: Callable[..., Any],
        program: Program,
        oracles: Collection[str] | None,
        *,
        blame: bool = False,
        known: Callable[[OracleViolationError], bool] = lambda violation: False,
    ) -> OracleViolationError | None:
        try:
            if self.running is not None:  # a compiler that crashes takes this process with it
                files.save(program, self.running)
            with contextlib.nullcontext() if self.limit is None else cpu_limit(self.limit):
                checker(program, oracles=oracles, blame=blame, known=known)
        except OracleViolationError as violation:
            return violation
        except RegionalTimeoutError as late:
            if self.limit is None:
                raise
            return OracleViolationError("compiles", "compile", str(late), origin=TOO_LONG)
        finally:
            if self.running is not None:
                self.running.unlink(missing_ok=True)
        return None
