"""What a judged training found, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pytest_regional._base.errors import RegionalError, RegionalWarning
from pytest_regional._base.text import SHOWN_MISMATCHES, plural
from pytest_regional.harness.parity.report import Mismatch, answer
from pytest_regional.harness.parity.tolerance import Errors


@dataclass(frozen=True)
class TrainingMismatch(Mismatch):
    """A difference in one step, of "loss" or of "gradient of up.weight", for example.

    Kinds are "value", "nan", "shape", "dtype", "device", "missing" and "exception".
    """

    step: int = field(kw_only=True)

    @property
    def place(self) -> str:
        """The step as well."""
        return f"step {self.step}: {self.where}"


@dataclass(frozen=True)
class Drift:
    """Three trainings left to themselves from the first step on: how far compiled and eager are from float64.

    A figure, not a verdict: a last bit that differs in one step is another starting point for the next.
    """

    parameters: float
    parameters_eager: float


@dataclass(frozen=True)
class StepReport:
    """One step from one starting point: compiled, eager, float64.

    Errors of gradients are the largest of any gradient's element; ``errors`` holds those of each tensor of floats.
    ``rounded_runs`` counts the eager steps that were taken, each rounded otherwise, to see what rounding explains.
    """

    number: int
    loss: float
    loss_eager: float
    loss_float64: float | None
    gradient_error: float | None
    gradient_error_eager: float | None
    mismatches: tuple[TrainingMismatch, ...] = ()
    compared: int = 0
    worst_ratio: float = 0.0
    worst_where: str = ""
    fp64_unavailable_reason: str | None = None
    drift: Drift | None = None
    errors: Mapping[str, Errors] = field(default_factory=dict, compare=False, repr=False)
    rounded_runs: int = 0

    def worst_mismatches(self) -> list[TrainingMismatch]:
        """Return the mismatches: those without a number (a missing gradient, a shape) first, then the largest."""
        return sorted(self.mismatches, key=lambda one: -self._excess(one.where))

    def worst_errors(self) -> list[tuple[str, Errors]]:
        """Return the errors of each tensor, the largest against what was allowed first."""
        return sorted(self.errors.items(), key=lambda item: -self._excess(item[0]))

    def _excess(self, where: str) -> float:
        errors = self.errors.get(where)
        if errors is None or math.isnan(errors.candidate):
            return math.inf
        return errors.candidate / errors.allowed if errors.allowed else (math.inf if errors.candidate else 0.0)


_COLUMNS: tuple[tuple[str, Callable[[StepReport], Any]], ...] = (
    ("step", lambda step: step.number),
    ("loss", lambda step: f"{step.loss:.9g}"),
    ("eager", lambda step: f"{step.loss_eager:.9g}"),
    ("float64", lambda step: _shown(step.loss_float64, ".9g")),
    ("gradient error", lambda step: _shown(step.gradient_error)),
    ("eager", lambda step: _shown(step.gradient_error_eager)),
    ("of the allowed", lambda step: f"{step.worst_ratio:.2g}"),
    ("at", lambda step: step.worst_where or "-"),
    ("drift", lambda step: _shown(step.drift.parameters if step.drift else None)),
    ("eager", lambda step: _shown(step.drift.parameters_eager if step.drift else None)),
)


@dataclass(frozen=True)
class TrainingReport:
    """All steps of one training; ``rule`` says how they were judged.

    ``failure`` is what ended the compiled training before its last batch, if anything did; ``unused`` are the trainable
    parameters that got no gradient in any eager step, so that no gradient of them was compared.
    """

    steps: tuple[StepReport, ...]
    level: str = "close"
    rule: str = ""
    failure: TrainingMismatch | None = None
    unused: tuple[str, ...] = ()

    #: Its name in the report of a run, next to comparisons of single calls.
    label: ClassVar[str] = "training"

    @property
    def errors(self) -> dict[str, Errors]:
        """Those of each tensor of floats in each step, by names such as "step 2: gradient of up.weight"."""
        return {f"step {step.number}: {where}": found for step in self.steps for where, found in step.errors.items()}

    @property
    def mismatches(self) -> tuple[TrainingMismatch, ...]:
        """Every difference, in order of the steps."""
        found = [mismatch for step in self.steps for mismatch in step.mismatches]
        return tuple(found if self.failure is None else [*found, self.failure])

    @property
    def ok(self) -> bool:
        """True where nothing differs."""
        return not self.mismatches

    @property
    def first_bad_step(self) -> int | None:
        """The number of the first step with a difference."""
        return min((mismatch.step for mismatch in self.mismatches), default=None)

    @property
    def compared(self) -> int:
        """How many tensors were compared, over all steps."""
        return sum(step.compared for step in self.steps)

    @property
    def anchored(self) -> bool:
        """True where every step was judged by a float64 run of it."""
        return bool(self.steps) and all(step.fp64_unavailable_reason is None for step in self.steps)

    @property
    def worst_ratio(self) -> float:
        """The largest error over its allowed error, 1.0 being the limit."""
        return max((step.worst_ratio for step in self.steps), default=0.0)

    def summary(self) -> str:
        """Return one line: verdict, number of steps and tensors, rule."""
        if self.mismatches:
            step = next((step for step in self.steps if step.mismatches), None)
            found, compared = (step.mismatches, step.compared) if step else (self.mismatches, 0)
            return answer("training", found, compared)
        steps = plural(len(self.steps), "step")
        return f"training parity holds over {steps}, {plural(self.compared, 'tensor')} at {self.rule}"

    def table(self) -> str:
        """Return an aligned table with a line for each step.

        ``loss`` and ``gradient error`` (the largest, against float64) are the compiled run's, each followed by eager's
        from the same starting point; ``drift`` is how far the parameters of a training left to itself are from float64.
        """
        rows = [[title for title, _ in _COLUMNS]]
        rows += [[str(value(step)) for _, value in _COLUMNS] for step in self.steps]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.rjust, row, widths)) for row in rows)

    def describe(self) -> str:
        """Return the report: the summary, the worst differences of the first bad step, how many more, the table."""
        lines = [self.summary()]
        if not self.ok:
            lines.append(f"  first at step {self.first_bad_step} of {len(self.steps)}; compared at {self.rule}")
            step = next((step for step in self.steps if step.mismatches), None)
            worst = step.worst_mismatches()[:SHOWN_MISMATCHES] if step else []
            worst += [] if self.failure is None else [self.failure]
            lines += [f"  - {mismatch}" for mismatch in worst]
            more = len(self.mismatches) - len(worst)
            lines += [f"  and {plural(more, 'more difference')}, in this step and later ones"] if more else []
        reasons = dict.fromkeys(step.fp64_unavailable_reason for step in self.steps)
        lines += [f"  not anchored: {reason}" for reason in reasons if reason and self.level == "close"]
        if self.unused:
            lines.append(f"  no gradient in eager, nothing compared: {', '.join(self.unused)}")
        return "\n".join([*lines, self.table()]) if self.steps else "\n".join(lines)

    def __str__(self) -> str:
        return self.describe()


def _shown(value: float | None, form: str = ".2e") -> str:
    return "-" if value is None else format(value, form)


class TrainingParityError(RegionalError, AssertionError):
    """The compiled model trains differently from eager; ``report`` holds every difference of every step."""

    def __init__(self, report: TrainingReport) -> None:
        super().__init__(report.describe())
        self.report = report


class BadTrainingError(RegionalError):
    """The training itself is at fault, not the compiler: it fails in eager, or could not show anything."""


class NoFp64ReferenceWarning(RegionalWarning):
    """A comparison at level ``close`` had no float64 run to go by, and fell back to ``assert_close`` defaults."""
