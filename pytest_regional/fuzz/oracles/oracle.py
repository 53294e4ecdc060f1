"""What an oracle is, what a check returns, and the error of a violated oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_regional._base.errors import RegionalError
from pytest_regional.fuzz.modes import COMPILED
from pytest_regional.harness.blame.culprit import Culprit
from pytest_regional.harness.parity.report import Mismatch

if TYPE_CHECKING:
    from pytest_regional.fuzz.oracles.example_run import ExampleRun
    from pytest_regional.harness.record import GeneratedSource


class OracleViolationError(RegionalError, AssertionError):
    """A program violates an oracle on a backend.

    Attributes:
        oracle: name of the oracle, a key of ``ORACLES``.
        stage: ``"compile"``, ``"run"``, ``"backward"`` or ``"restart"``.
        detail: what was seen, in sentences.
        region: the region to blame, where one is known.
        origin: what makes two failures the same defect; neither numbers nor addresses are in it.
        program: source of the program.
        without_backend: whether the same goes wrong with AOTAutograd alone (``aot_eager``), which compiles nothing:
            then it is a defect of capture, and no backend can help it. Told for ``compiles`` and ``parity``.
        culprit: the step of the compile that is to blame; of what a campaign found, once it is reduced.
        sources: the code that was generated for the program.
    """

    without_backend = False
    culprit: Culprit | None = None
    sources: Sequence[GeneratedSource] = ()

    def __init__(
        self, oracle: str, stage: str, detail: str, *, origin: str, region: str | None = None, program: str = ""
    ) -> None:
        self.oracle, self.stage, self.detail, self.origin = oracle, stage, detail, origin
        self.region, self.program = region, program
        super().__init__(oracle, stage, detail)

    def __str__(self) -> str:
        blame = f"\nregion to blame: {self.region}" if self.region else ""
        if self.without_backend:
            blame += "\nAOTAutograd alone fails alike (aot_eager): the backend is not to blame"
        shown = f"\n\n{self.program}" if self.program else ""
        return f"oracle {self.oracle!r} is violated ({self.stage}): {self.detail}{blame}{shown}"


def kinds_of(mismatches: Iterable[Mismatch]) -> str:
    """Return what differs, and of what, without saying which or by how much: ``"stride of grad, value of output"``."""
    found = {f"{mismatch.kind} of {_subject(mismatch.where)}" for mismatch in mismatches}
    return ", ".join(sorted(found))


_SUBJECTS = ("grad", "output", "input", "buffer", "backward", "forward", "random state")


def _subject(where: str) -> str:
    second = "second call" if where.startswith("second call") else ""
    plain = where.partition(": ")[2] if second else where
    subject = next(
        (
            word
            for word in ("grad", "output", "input", "buffer", "backward", "forward", "random state")
            if plain.startswith(word)
        ),
        "rest",
    )
    return f"{subject} ({second})" if second else subject


@dataclass(frozen=True)
class Oracle:
    """Something that holds for every program on every backend that declares what it needs.

    Attributes:
        name: what errors, findings and tables call it.
        summary: one sentence.
        check: raises :class:`OracleViolationError` where an example run violates it, and :class:`NoClaim` where it says
            nothing about the example.
        modes: in which modes it can be checked.
        requires: capabilities of a backend without which it is not demanded.
        every: where oracles are not chosen by name, one program in so many is checked against it; more than 1 for
            oracles that compile once more, and 0 for those that are checked by name alone.
        place: in the order of checks. Oracles of caches look for what the first compile stored, so that those which
            begin with empty caches come later.
        fails_in_capture: whether a defect of AOTAutograd violates it on each backend, which is then not to blame;
            ``compiles`` and ``parity`` tell so in another way.
        after_parity: whether it compares further calls with eager, and says nothing new where the first one differs.
    """

    name: str
    summary: str
    check: Callable[[ExampleRun], None] = field(repr=False)
    modes: tuple[str, ...] = COMPILED
    requires: tuple[str, ...] = ()
    every: int = 1
    place: int = 0
    fails_in_capture: bool = False
    after_parity: bool = False


class NoClaim(RegionalError):
    """An oracle says nothing about this program on this backend; the message is the reason."""


@dataclass(frozen=True)
class CheckResult:
    """What :func:`check` found where no oracle is violated.

    Attributes:
        oracles: names of the oracles that were checked and hold.
        skipped: names of the others, with reasons.
        seconds: how long all took.
        spent: the seconds of each oracle; ``"compile"`` is what they share.
        known: violated oracles that the caller knew of.
    """

    oracles: tuple[str, ...]
    skipped: Mapping[str, str]
    seconds: float
    spent: Mapping[str, float] = field(default_factory=dict, compare=False)
    known: tuple[OracleViolationError, ...] = ()
