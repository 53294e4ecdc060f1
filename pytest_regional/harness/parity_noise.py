"""How large the rounding of an eager program is, measured by running it again with every result off by a rounding.

Two kinds of tensor are judged by it. Where there is no float64 run, nothing else tells how much rounding costs. And
where a value is zero in theory (the gradient of a bias before a normalization, or of the bias of attention's keys) a
float64 run says zero, eager's own error is one sample of what was left of cancelling terms, and another order of the
same sums leaves several times as much.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch

from pytest_regional.harness.execution import Execution
from pytest_regional.harness.parity_captured import Captured
from pytest_regional.harness.parity_state import same_bytes
from pytest_regional.harness.tolerance import same_as_real, without_digits

RUNS = 5


Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class Noise:
    """Results of eager runs of one program on one set of inputs, each rounded otherwise.

    Attributes:
        runs: the floating tensors of each run, by the names that reports give them.
        scale: the largest magnitude of any floating tensor of the plain eager run.
    """

    runs: tuple[Tensors, ...]
    scale: float

    @classmethod
    def of_values(cls, eager: Tensors, runs: Iterable[Tensors]) -> Noise:
        """Keep what ``runs`` made beside what the plain run made."""
        return cls(tuple(runs), max((largest(value) for value in eager.values()), default=0.0))

    @classmethod
    def measure(cls, eager: Execution, run: Callable[[int], Execution]) -> Noise:
        """Call ``run`` with several seeds; runs that chose or raised otherwise than ``eager`` did say nothing."""
        runs = (run(seed) for seed in range(1, RUNS + 1))
        return cls.of_values(_floats(eager), [_floats(one) for one in runs if _alike(eager, one)])

    def of(self, where: str, eager: torch.Tensor, anchor: torch.Tensor | None) -> float | None:
        """Return how far rounding moves the tensor called ``where``: the median over the runs of the largest distance.

        None where that is not known: fewer than three runs, or results so far apart that more than rounding differed.
        """
        if not is_float(eager.dtype):
            return None
        reference = same_as_real(eager if anchor is None else anchor)
        found = [distance(same_as_real(run[where]), reference) for run in self.runs if where in run]
        if len(found) < 3:
            return None
        noise = statistics.median(found)
        limit = self.scale if without_digits(largest(reference), noise) else largest(reference)
        return noise if noise <= limit * math.sqrt(torch.finfo(eager.dtype).eps) else None


def largest(value: torch.Tensor) -> float:
    """Return the largest magnitude of a finite element; 0 without any."""
    return distance(same_as_real(value), same_as_real(torch.zeros_like(value)))


def distance(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the largest distance of two finite elements; infinite where the shapes differ."""
    if first.shape != second.shape:
        return math.inf
    apart = (first - second).abs()
    apart = apart[apart.isfinite()]
    return float(apart.max()) if apart.numel() else 0.0


def is_float(dtype: torch.dtype) -> bool:
    """Say whether numbers of ``dtype`` are rounded."""
    return bool(dtype.is_floating_point or dtype.is_complex)


def _floats(execution: Execution) -> dict[str, torch.Tensor]:
    """Return every floating tensor of an execution under the name that reports give it."""
    after = {**execution.inputs_after, **execution.buffers_after}
    named = {**dict(execution.outputs), **execution.grads, **after}
    captured = {name: value for name, value in named.items() if isinstance(value, Captured)}
    return {name: value.value for name, value in captured.items() if is_float(value.dtype)}


def _alike(eager: Execution, run: Execution) -> bool:
    if run.exception is not None or run.structure != eager.structure:
        return False
    return all(_same_leaf(one, other) for (_, one), (_, other) in zip(eager.outputs, run.outputs, strict=True))


def _same_leaf(first: object, second: object) -> bool:
    if not isinstance(first, Captured) or not isinstance(second, Captured):
        return type(first) is type(second)
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return is_float(first.dtype) or same_bytes(first.value, second.value)


NoiseSource = Callable[[], Noise]
"""Measures when it is first asked: most comparisons never need to."""


__all__ = ["RUNS", "Noise", "NoiseSource"]
