"""Compare one step of the compiled training with the same step in eager, tensor by tensor.

The three steps began with the same parameters, buffers and optimizer state, and the optimizers of the two references
got the *compiled* gradients: parameters are compared with what the optimizer makes of those very gradients. Otherwise
Adam, which divides a gradient by its own size, would turn the rounding of a gradient near zero into a whole step.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch

from pytest_regional.harness.parity.fp64_reference import Precision
from pytest_regional.harness.parity.noise import Noise, NoiseSource, is_float, judged
from pytest_regional.harness.parity.report import Comparison
from pytest_regional.harness.parity.state import LOW_PRECISION_TO_FP64
from pytest_regional.harness.parity.tolerance import EAGER_ERROR_FACTOR, Coarse, Tolerance, judge
from pytest_regional.harness.training.report import Drift, StepReport, TrainingMismatch
from pytest_regional.harness.training.trainer import TrainingStep

Values = Mapping[str, torch.Tensor | None]

#: Why a step has no float64 reference that could not have one: its tensors are as wide as float64 already.
NOTHING_TO_REFINE = "nothing that trains has a precision below float64"
#: How many runs say how far rounding moves all gradients together.
FEW_RUNS = 5
#: Where rounding moves all gradients together by more than this of their size, choices flip in those runs, too.
MOST_MOVED = 0.1


class CoarseStep(NamedTuple):
    """A step of eager's in the coarser precision that a backend computes in."""

    precision: Precision
    step: TrainingStep


def judge_step(
    tolerance: Tolerance,
    candidate: TrainingStep,
    eager: TrainingStep,
    fp64: TrainingStep | str,
    *,
    coarse: CoarseStep | None = None,
    noise: NoiseSource,
    drift: Drift | None = None,
) -> StepReport:
    """Return the differences of one step; ``fp64`` is the float64 one, or the reason why there is none."""
    float64 = None if isinstance(fp64, str) else fp64
    reason = fp64 if isinstance(fp64, str) else _flaw(eager, fp64, noise)
    usable = float64 if reason is None else None

    def compared(noise: Noise | None) -> _StepComparison:
        comparison = _StepComparison(tolerance, candidate, eager, usable, coarse, noise)
        comparison.run()
        return comparison

    found = judged(compared, noise)
    return StepReport(
        number=candidate.number,
        loss=float(candidate.loss),
        loss_eager=float(eager.loss),
        loss_float64=None if float64 is None else float(float64.loss),
        gradient_error=None if usable is None else largest_error(candidate.gradients, usable.gradients),
        gradient_error_eager=None if usable is None else largest_error(eager.gradients, usable.gradients),
        mismatches=tuple(TrainingMismatch(**vars(one), step=candidate.number) for one in found.mismatches),
        compared=found.compared,
        worst_ratio=found.worst_ratio,
        worst_where=found.worst_where,
        fp64_unavailable_reason=reason,
        drift=drift,
        errors=found.errors,
        rounded_runs=0 if found.noise is None else len(found.noise.runs),
    )


class _StepComparison(Comparison):
    """The comparison of one step."""

    def __init__(
        self,
        tolerance: Tolerance,
        candidate: TrainingStep,
        eager: TrainingStep,
        fp64: TrainingStep | None,
        coarse: CoarseStep | None,
        noise: Noise | None,
    ) -> None:
        super().__init__(tolerance, noise)
        self.candidate, self.eager = candidate, eager
        self.fp64, self.coarse = fp64, coarse

    def run(self) -> None:
        for where, values in self._pairs():
            self._compare(where, *values)

    def _pairs(self) -> Iterator[tuple[str, tuple[torch.Tensor | None, ...]]]:
        """Yield what a tensor is called, and its value in the compiled, the eager, the float64 and the coarse step."""
        steps = self.candidate, self.eager, self.fp64, self.coarse.step if self.coarse else None
        values = [{} if step is None else named_values(step) for step in steps]
        for name in dict.fromkeys([*values[1], *values[0]]):
            yield name, tuple(one.get(name) for one in values)

    def _compare(
        self,
        where: str,
        candidate: torch.Tensor | None,
        eager: torch.Tensor | None,
        fp64: torch.Tensor | None,
        coarse: torch.Tensor | None,
    ) -> None:
        if candidate is None and eager is None:
            return
        if candidate is None or eager is None:
            has = "there is none" if candidate is None else "there is one"
            self.add(where, "missing", f"{has} in the compiled training, but in eager it is the other way round")
            return
        for kind in ("shape", "dtype", "device"):
            ours, theirs = getattr(candidate, kind), getattr(eager, kind)
            if ours != theirs:
                self.add(where, kind, f"compiled {ours}, eager {theirs}")
                return
        rounded = Coarse(self.coarse.precision, coarse) if self.coarse else None
        self._judge(where, candidate, eager, fp64, rounded)

    def _judge(
        self,
        where: str,
        candidate: torch.Tensor,
        eager: torch.Tensor,
        fp64: torch.Tensor | None,
        coarse: Coarse | None,
    ) -> None:
        noise = None if self.noise is None else self.noise.of(where, eager, fp64)
        self.judged(where, judge(self.tolerance, candidate, eager, fp64, coarse, noise))


def named_values(step: TrainingStep) -> dict[str, torch.Tensor | None]:
    """Return what a step made under the names that reports give it."""
    values: dict[str, torch.Tensor | None] = {"loss": step.loss}
    for kind, group in (("gradient of", step.gradients), ("parameter", step.parameters), ("buffer", step.buffers)):
        values |= {f"{kind} {name}": value for name, value in group.items()}
    return values


def noise_of(eager: TrainingStep, run: Callable[[int], TrainingStep]) -> NoiseSource:
    """Return what takes the step that ``eager`` is again, each time rounded otherwise."""
    return Noise.source(_floats(eager), lambda seed: _floats(run(seed)))


def _floats(step: TrainingStep) -> dict[str, torch.Tensor]:
    return {name: value for name, value in named_values(step).items() if value is not None and is_float(value.dtype)}


def _flaw(eager: TrainingStep, fp64: TrainingStep, noise: NoiseSource) -> str | None:
    """Say why the float64 step is no step of the same computation, or None.

    Another dropout mask or another choice of experts in float64 makes gradients that are far from eager's, and a
    tolerance earned from their distance would excuse everything. All gradients count together: that of a bias before
    a normalization is nothing but rounding. Under autocast the gradients' dtype does not say how coarse the numbers
    are that they were computed from, so what rounding does to them decides.
    """
    dtypes = {gradient.dtype for gradient in eager.gradients.values() if gradient is not None}
    narrow = [dtype for dtype in dtypes if dtype in LOW_PRECISION_TO_FP64]
    if not narrow:
        return NOTHING_TO_REFINE
    limit = max(math.sqrt(torch.finfo(dtype).eps) for dtype in narrow)
    distance, size = _distance(eager.gradients, fp64.gradients)
    if not distance <= limit * size and not distance <= _moved_by_rounding(eager, noise):
        return (
            f"the float64 run computes something else: its gradients are {distance / size if size else math.inf:.2g} "
            f"of their size away from eager's (random numbers, or choices that flipped)"
        )
    return None


def _moved_by_rounding(eager: TrainingStep, noise: NoiseSource) -> float:
    """Return how far all gradients together may be from float64 for no reason but rounding; 0 where it says nothing."""
    gradients = {f"gradient of {name}": value for name, value in eager.gradients.items()}
    found = [_distance(run, gradients) for run in noise(FEW_RUNS).runs]
    moved = statistics.median(distance for distance, _ in found) if found else 0.0
    return EAGER_ERROR_FACTOR * moved if all(moved <= MOST_MOVED * size for _, size in found) else 0.0


def _distance(first: Values, second: Values) -> tuple[float, float]:
    """Return the norm of the difference of all gradients together, and that of ``second``."""
    apart = size = 0.0
    for name, value in second.items():
        other = first.get(name)
        if value is None or other is None:
            continue
        apart += float((other.to(value.dtype) - value).abs().double().square().sum())
        size += float(value.abs().double().square().sum())
    return math.sqrt(apart), math.sqrt(size)


def largest_error(values: Values, exact: Values) -> float:
    """Return the largest distance of any element of ``values`` from the float64 value of it."""
    pairs = [(values.get(name), truth) for name, truth in exact.items()]
    errors = [
        float((value.to(truth.dtype) - truth).abs().max())
        for value, truth in pairs
        if value is not None and truth is not None and value.shape == truth.shape and truth.numel()
    ]
    return max(errors, key=lambda error: math.inf if math.isnan(error) else error, default=0.0)
