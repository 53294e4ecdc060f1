"""The eager and the float64 training that a compiled one is held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from pytest_regional.harness.tolerance import Tolerance
from pytest_regional.harness.training.errors import BadTrainingError
from pytest_regional.harness.training.judging import CoarseStep, judge_step, largest_error, noise_of
from pytest_regional.harness.training.report import Drift, StepReport
from pytest_regional.harness.training.trainer import Batch, Trainer, TrainingState, TrainingStep

TrainerFactory = Callable[[bool], Trainer]
"""Makes a trainer of a fresh eager copy of the model; the argument says whether in float64."""


class _Float64:
    """A float64 trainer that may turn out to be impossible; the reason then takes the place of every step."""

    def __init__(self, make: TrainerFactory) -> None:
        self.make = make
        self.trainer: Trainer | None = None
        self.reason = ""

    def step(
        self,
        batch: Batch,
        number: int,
        start: TrainingState | None = None,
        gradients: Mapping[str, torch.Tensor | None] | None = None,
    ) -> TrainingStep | str:
        if self.reason:
            return self.reason
        try:
            self.trainer = self.trainer or self.make(True)
            if start is not None:
                self.trainer.resume(start)
            return self.trainer.step(batch, number, gradients)
        except Exception as error:  # noqa: BLE001 - a program that cannot run in float64 is judged without.
            self.reason = f"the float64 run raised {first_line(error)}"
            return self.reason


@dataclass
class References:
    """Eager and float64 trainings: two that start each step where the compiled run did, two left to themselves.

    ``with_gradient`` names the parameters that got a gradient in any eager step; ``saw_gradient`` is true where one was
    not zero. ``make_coarse`` makes a trainer in the precision of a backend that computes in a coarser one.
    """

    make: TrainerFactory
    tolerance: Tolerance
    make_coarse: Callable[[], Trainer] | None = None
    with_gradient: set[str] = field(default_factory=set)
    saw_gradient: bool = False

    def __post_init__(self) -> None:
        """Make the copies."""
        self.eager, self.free = self.make(False), self.make(False)
        self.coarse = self.make_coarse() if self.make_coarse else None
        self.float64, self.free64 = _Float64(self.make), _Float64(self.make)

    def judge(self, start: TrainingState, candidate: TrainingStep, batch: Batch) -> StepReport:
        """Take the step that ``candidate`` took from ``start``, in eager and in float64, and compare."""
        self.eager.resume(start)
        eager = self._eager_step(self.eager, batch, candidate)
        anchor = self.float64.step(batch, candidate.number, start, candidate.gradients)
        self.with_gradient |= {name for name, gradient in eager.gradients.items() if gradient is not None}
        self.saw_gradient |= any(g is not None and bool(g.any()) for g in eager.gradients.values())
        coarse = self._coarse_step(start, candidate, batch)

        def rounded_otherwise(seed: int) -> TrainingStep:
            self.eager.resume(start)
            return self._eager_step(self.eager, batch, candidate, rounding=seed)

        return judge_step(
            self.tolerance,
            candidate,
            eager,
            anchor,
            coarse=coarse,
            noise=noise_of(eager, rounded_otherwise),
            drift=self._drift(candidate, batch),
        )

    def _coarse_step(self, start: TrainingState, candidate: TrainingStep, batch: Batch) -> CoarseStep | None:
        if self.coarse is None or self.coarse.precision is None:
            return None
        self.coarse.resume(start)
        return CoarseStep(self.coarse.precision, self._eager_step(self.coarse, batch, candidate))

    def confirm(self, batch: Batch, number: int) -> None:
        """Take step ``number`` in eager alone.

        Raises:
            BadTrainingError: eager fails there as well, so it is the test that is wrong.
        """
        self._take(self.free, batch, number)

    def _eager_step(
        self, trainer: Trainer, batch: Batch, candidate: TrainingStep, rounding: int | None = None
    ) -> TrainingStep:
        return self._take(trainer, batch, candidate.number, candidate.gradients, rounding)

    def _take(
        self,
        trainer: Trainer,
        batch: Batch,
        number: int,
        gradients: Mapping[str, torch.Tensor | None] | None = None,
        rounding: int | None = None,
    ) -> TrainingStep:
        try:
            return trainer.step(batch, number, gradients, rounding)
        except BadTrainingError:
            raise
        except Exception as error:
            raise BadTrainingError(
                f"the training fails in eager, in step {number}: {first_line(error)}\n"
                f"This is not the compiler's failure. Mend the model or its batches first."
            ) from error

    def _drift(self, candidate: TrainingStep, batch: Batch) -> Drift | None:
        eager, anchor = self._take(self.free, batch, candidate.number), self.free64.step(batch, candidate.number)
        if isinstance(anchor, str):
            return None
        return Drift(
            loss_eager=float(eager.loss),
            loss_float64=float(anchor.loss),
            parameters=largest_error(candidate.parameters, anchor.parameters),
            parameters_eager=largest_error(eager.parameters, anchor.parameters),
        )


def first_line(error: Exception) -> str:
    """Return the kind of ``error`` and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"
