"""Programs as the subject of a campaign: drawn or mutated, checked by the oracles, in a time, and reduced."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pytest_regional._base.limits import RegionalTimeoutError, cpu_limit
from pytest_regional.backends.spec import PARTITIONERS
from pytest_regional.fuzz import oracles as oracles_of_programs
from pytest_regional.fuzz.campaign import Failure, Known, UnconfirmedError
from pytest_regional.fuzz.findings import files
from pytest_regional.fuzz.findings.folder import AnyFinding, Finding, features_of, installed_versions, signature_of
from pytest_regional.fuzz.model.claims import needs_of
from pytest_regional.fuzz.model.program import Program
from pytest_regional.fuzz.modes import WITHOUT_DYNAMO
from pytest_regional.fuzz.oracles import OracleViolationError
from pytest_regional.fuzz.shrink import reduce_program
from pytest_regional.harness.blame.culprit import Culprit
from pytest_regional.harness.blame.reproducing import culprit_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from pytest_regional.harness.regional import Regional

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
class Programs:
    """Programs as the subject of a campaign.

    Attributes:
        checker: checks a program; see :class:`Check`.
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

    checker: Check
    drawn: Callable[[int], Iterator[Program]]
    backend: str = "reference"
    device: str = "cpu"
    mode: str = "native"
    oracles: Collection[str] | None = None
    without: Collection[str] = ()
    limit: float | None = None
    running: Path | None = None
    partitioners: Sequence[str] = ()
    through_dynamo: Check | None = None
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
            mode: one of :data:`~pytest_regional.fuzz.modes.MODES`.
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
        """Check the program against all oracles; return the first violation that is not ``known``.

        Raises:
            UnconfirmedError: there is one, and Dynamo's path does not show it.
        """
        features = features_of(example)
        violation = self._violation(self.checker, example, self.oracles, known=lambda one: known(one, features))
        if violation is None:
            return None
        if self.through_dynamo is None:
            return Failure(violation, example)
        confirmed = self.check_again(example, violation.oracle)
        if confirmed is None:
            raise UnconfirmedError(f"{violation.oracle} ({violation.stage}): {violation.origin}")
        return None if known(confirmed, features) else Failure(confirmed, example)

    def check_again(self, example: Program, oracle: str, *, blame: bool = False) -> OracleViolationError | None:
        """Check the program against one oracle, through Dynamo."""
        violation = self._violation(self.through_dynamo or self.checker, example, (oracle,), blame=blame)
        if blame and self.blamer is not None and violation is not None and violation.origin != TOO_LONG:
            violation.culprit = self.blamer(functools.partial(self._check_once_more, example, oracle))
        return violation

    def _check_once_more(self, example: Program, oracle: str) -> None:
        violation = self.check_again(example, oracle)
        if violation is not None:
            raise violation

    def reduce(self, example: Program, still_fails: Callable[[Program], bool], seconds: float) -> Program:
        """Return a smaller program that ``still_fails``."""
        return reduce_program(example, still_fails, seconds=seconds)

    def finding(self, reduced: Program, original: Program, violation: OracleViolationError) -> Finding:
        """Return the finding; what AOTAutograd breaks without the backend is kept, and checked again, as its own."""
        mode = self.mode if self.through_dynamo is None else CONFIRMED_IN
        where = (CAPTURE, "cpu", "native") if violation.without_backend else (self.backend, self.device, mode)
        backend, device, mode = where
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
        checker: Check,
        program: Program,
        oracles: Collection[str] | None,
        *,
        blame: bool = False,
        known: Callable[[OracleViolationError], bool] = lambda violation: False,
    ) -> OracleViolationError | None:
        try:
            with self._on_disk(program), self._in_time():
                checker(program, oracles=oracles, blame=blame, known=known)
        except OracleViolationError as violation:
            return violation
        return None

    @contextlib.contextmanager
    def _on_disk(self, program: Program) -> Iterator[None]:
        """Keep the program in a file while it is checked: a compiler that crashes takes this process with it."""
        if self.running is None:
            yield
            return
        files.save(program, self.running)
        try:
            yield
        finally:
            self.running.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _in_time(self) -> Iterator[None]:
        if self.limit is None:
            yield
            return
        try:
            with cpu_limit(self.limit):
                yield
        except RegionalTimeoutError as late:
            raise OracleViolationError("compiles", "compile", str(late), origin=TOO_LONG) from None


__all__ = ["CAPTURE", "CONFIRMED_IN", "Check", "Programs", "partitioned"]
