"""What a comparison found, in data and in sentences, and the errors that carry it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_regional._base.errors import RegionalError
from pytest_regional._base.text import SHOWN_MISMATCHES, plural
from pytest_regional.harness.blame.culprit import Culprit
from pytest_regional.harness.codegen.kernels import CodePlace
from pytest_regional.harness.parity.execution import Execution
from pytest_regional.harness.parity.tolerance import Errors, ValueEvidence


@dataclass(frozen=True)
class Mismatch:
    """One difference: ``where`` ("output[0]['h']", "grad of input 1", ...), its kind, a sentence.

    Kinds are "value", "nan", "dtype", "shape", "stride", "device", "requires_grad", "alias", "structure", "exception",
    "missing-grad", "overwritten", "draws" and "distribution".
    """

    where: str
    kind: str
    detail: str
    evidence: ValueEvidence | None = None

    @property
    def place(self) -> str:
        """Where it is among all that a report compares."""
        return self.where

    def __str__(self) -> str:
        return f"{self.place}: {self.kind}: {self.detail}"


#: What the places of a second call begin with.
SECOND_CALL = "second call, on fresh inputs: "


def excess(mismatch: Mismatch) -> float:
    """Return the error over the allowed error; infinity of a difference without a number, such as one of shapes."""
    evidence = mismatch.evidence
    if evidence is None or evidence.candidate_error is None or not evidence.allowed or evidence.kind == "nan":
        return math.inf
    return evidence.candidate_error / evidence.allowed


def worst_first(mismatches: Iterable[Mismatch]) -> list[Mismatch]:
    """Return the mismatches: those of a second call last, and those without a number before the others."""
    return sorted(mismatches, key=lambda one: (one.where.startswith(SECOND_CALL), -excess(one)))


def answer(subject: str, mismatches: Sequence[Mismatch], compared: int) -> str:
    """Return the line that a failure begins with: what differs, how many of all tensors, and the worst difference.

    ``subject`` is what differs, such as "region 'ffn'".
    """
    places = len({mismatch.place for mismatch in mismatches})
    ordered = worst_first(mismatches)
    found = next((one for one in ordered if excess(one) < math.inf), None)
    worst = f"worst {found.place}, {excess(found):.3g}x allowed" if found else str(ordered[0]).splitlines()[0]
    if places > compared:
        share = f"{plural(places, 'difference')}, " if places > 1 else ""
    else:
        share = f"{places} of {plural(compared, 'tensor')}, "
    differs = "differ" if subject.startswith("regions ") else "differs"
    return f"{subject} {differs} from eager: {share}{worst}"


def shown(mismatches: Sequence[Mismatch]) -> list[str]:
    """Return a line for each of the worst mismatches, and one that counts the others."""
    lines = [f"  - {mismatch}" for mismatch in worst_first(mismatches)[:SHOWN_MISMATCHES]]
    more = len(mismatches) - len(lines)
    return [*lines, f"  and {plural(more, 'more difference')}, which pytest -v shows"] if more else lines


@dataclass(frozen=True)
class ParityReport:
    """The result of one comparison; ``ok`` means no mismatch, and ``compared == 0`` that it showed nothing.

    ``compared`` counts the outputs, gradients and mutated tensors whose values were compared; ``worst_ratio`` is the
    largest error over its allowed error, 1.0 being the limit; ``errors`` holds those of each tensor of floats.
    ``rounding_only`` names tensors that are zero in theory: what they hold is what rounding left. ``random_runs`` is in
    how many runs the backend's own random numbers were compared by distribution, 0 for a program that draws none.
    ``not_compared`` says what of the results, arguments and Python state could not be compared, and why.
    """

    mismatches: tuple[Mismatch, ...] = ()
    level: str = "close"
    anchored: bool = False
    fp64_unavailable_reason: str | None = None
    compared: int = 0
    worst_ratio: float = 0.0
    worst_where: str = ""
    label: str = ""
    rule: str = field(default="", compare=False)
    errors: Mapping[str, Errors] = field(default_factory=dict, compare=False, repr=False)
    rounding_only: tuple[str, ...] = field(default=(), compare=False)
    random_runs: int = field(default=0, compare=False)
    not_compared: tuple[str, ...] = field(default=(), compare=False)

    @property
    def ok(self) -> bool:
        """True where nothing differs."""
        return not self.mismatches

    def summary(self) -> str:
        """Return one line: verdict, number of tensors, rule, and how near the limit the worst one came."""
        about = f"{self.label}: " if self.label else ""
        noise = f"; rounding only: {_few(self.rounding_only)}" if self.rounding_only else ""
        if self.mismatches:
            return f"{about}{answer('the compiled program', self.mismatches, self.compared)}; {self.rule}{noise}"
        worst = f", worst error {self.worst_ratio:.3g} of the allowed at {self.worst_where}" if self.worst_where else ""
        return f"{about}parity holds over {plural(self.compared, 'tensor')} at {self.rule}{worst}{noise}"

    def describe(self, blame: str | None = None, subject: str = "") -> str:
        """Return the report for a person: what differs, the worst differences, how it was compared, and the blame.

        ``subject`` is what the differences are put down to, the whole program where nothing is known.
        """
        if self.ok:
            lines = [self.summary()]
        else:
            subject = subject or self.label or "the compiled program"
            lines = [answer(subject, self.mismatches, self.compared), *shown(self.mismatches)]
            lines.append(f"  compared at {self.rule}")
        if self.rounding_only and not self.ok:
            lines.append(f"  rounding only: {_few(self.rounding_only)}")
        if self.not_compared:
            lines.append(f"  not compared: {_few(self.not_compared)}")
        if blame:
            lines.append(f"  blame: {blame}")
        return "\n".join(lines)


class ParityError(RegionalError, AssertionError):
    """The compiled program differs from eager.

    Attributes:
        report: every difference.
        blame: what is to blame, in a sentence; ``None`` where it was not looked for.
        culprit: the same as a record, with the experiments; under ``--regional-blame=deep`` only.
        places: lines of the generated code that makes the wrong values, as far as they are known.

    ``subject``, of which only the message is made, is what the differences are put down to.
    """

    def __init__(
        self,
        report: ParityReport,
        blame: str | None = None,
        culprit: Culprit | None = None,
        places: Sequence[CodePlace] = (),
        subject: str = "",
    ) -> None:
        told = report.describe(blame, subject)
        super().__init__("\n    ".join([told, *(culprit.evidence.splitlines() if culprit else ())]))
        self.report = report
        self.blame = blame
        self.culprit = culprit
        self.places = tuple(places)


class BadProgramError(RegionalError):
    """The eager program itself failed: the test's program is at fault, not the backend."""

    def __init__(self, execution: Execution) -> None:
        error = execution.exception
        super().__init__(
            f"the test's program fails in eager ({execution.stage}): {type(error).__name__}: {error}\n"
            f"This is not a backend failure: nothing was compiled for it. Fix the program or its inputs first. If it "
            f"is to fail, assert_parity(..., raises={type(error).__name__}) compares what the compiled program raises."
        )
        self.execution = execution


class NotRefusedError(RegionalError, AssertionError):
    """The program runs in eager, though ``raises=`` says that it fails."""

    def __init__(self, expected: type[Exception]) -> None:
        super().__init__(f"the program runs in eager, and raises= says that it fails with {expected.__name__}")
        self.expected = expected


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def describe_values(evidence: ValueEvidence) -> str:
    """Return the sentence for one piece of evidence: where, what stands there, and the errors against the limit."""
    at = f"at {list(evidence.index)}" if evidence.index else "of the only element"
    share = f"{evidence.mismatched} of {evidence.total} elements"
    values = f"compiled {_number(evidence.candidate)}, eager {_number(evidence.eager)}"
    if evidence.fp64 is not None:
        values += f", float64 {_number(evidence.fp64)}"
    if evidence.kind == "nan":
        return f"NaN or infinity differs in {share}; first {at}: {values}"
    if evidence.fp64 is None:
        errors = f"error against eager {evidence.candidate_error:.4g}"
    else:
        errors = f"error against float64: compiled {evidence.candidate_error:.4g}, eager {evidence.eager_error:.4g}"
    limit = "no difference allowed" if evidence.allowed is None else f"allowed {evidence.allowed:.4g}"
    narrow = f"; all are numbers of {evidence.computed_in}, eager's are not" if evidence.computed_in else ""
    return f"{share} differ; worst {at}: {values}; {errors}, {limit}{narrow}"


def _number(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, float) else repr(value)
