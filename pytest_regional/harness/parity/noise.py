"""How large the rounding of an eager program is, measured by running it again with every result off by a rounding.

Eager's distance from a float64 run is one sample of what rounding does to a tensor. It says too little in three cases:

* There is no float64 run.
* The value is zero in theory (the gradient of a bias before a normalization, or of the bias of attention's keys): what
  is left of cancelling terms is several times as much in another order of the same sums.
* Rounding decides on which side of a kink a value falls (ReLU, a maximum), which moves a gradient by a whole row; or
  it was lucky. Under bfloat16 autocast the same sums, rounded otherwise, leave 2 to 10 times as much in small models.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from pytest_regional.harness.parity.captured import Captured
from pytest_regional.harness.parity.execution import Execution
from pytest_regional.harness.parity.state import same_bytes
from pytest_regional.harness.parity.tolerance import Rounding, root_mean_square, same_as_real, without_digits

#: Of a kink that rounding passes in one run of n, n being what hides it best, this many runs miss it in 3 % of tries.
RUNS = 12
#: A kink that is passed more seldom: so many runs are made where a difference is beyond what the first ones explain,
#: but at most :data:`NEAR` times that. The largest of more runs is larger where errors are rare and large, and hardly
#: elsewhere, so that these cost less of what faults are seen by than a larger factor would.
MORE_RUNS = 36
NEAR = 2.0

Tensors = Mapping[str, torch.Tensor]
NoiseSource = Callable[[int], "Noise"]
"""Makes so many runs when it is asked, which most comparisons never do."""


class Judged(Protocol):
    """What was found out of a comparison: whether numbers differ, and the largest error in units of what is allowed."""

    @property
    def may_be_rounding(self) -> bool: ...
    @property
    def worst_ratio(self) -> float: ...


AnyJudged = TypeVar("AnyJudged", bound=Judged)


def judged(compare: Callable[[Noise | None], AnyJudged], noise: NoiseSource | None) -> AnyJudged:
    """Return what ``compare`` finds, where numbers differ by more than rounding explains."""
    found = compare(None)
    if noise is None or not found.may_be_rounding:
        return found
    found = compare(noise(RUNS))
    if found.may_be_rounding and found.worst_ratio <= NEAR:
        found = compare(noise(MORE_RUNS))
    return found


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
    def source(cls, eager: Tensors, run: Callable[[int], Tensors | None]) -> NoiseSource:
        """Return what calls ``run`` with as many seeds as asked, with each once; a run of None says nothing."""
        scale = max((largest(value) for value in eager.values()), default=0.0)
        once = functools.cache(run)

        def measure(count: int) -> Noise:
            runs = (once(seed) for seed in range(1, count + 1))
            return cls(tuple(one for one in runs if one is not None), scale)

        return measure

    @classmethod
    def source_of_executions(cls, eager: Execution, run: Callable[[int], Execution]) -> NoiseSource:
        """Return :meth:`source` of what is executed; runs that chose or raised otherwise than ``eager`` say nothing."""

        def floats(seed: int) -> Tensors | None:
            one = run(seed)
            return _floats(one) if _alike(eager, one) else None

        return cls.source(_floats(eager), floats)

    def of(self, where: str, eager: torch.Tensor, fp64: torch.Tensor | None) -> Rounding | None:
        """Return how far rounding moves the tensor called ``where``; None from fewer than three runs."""
        if not is_float(eager.dtype):
            return None
        reference = same_as_real(eager if fp64 is None else fp64)
        runs = [same_as_real(run[where]) for run in self.runs if where in run]
        if len(runs) < 3:
            return None
        found = [distance(run, reference) for run in runs]
        whole = max(root_mean_square(run - reference) if run.shape == reference.shape else math.inf for run in runs)
        usual, size = statistics.median(found), largest(reference)
        # A float64 program may narrow values itself, or leave a few digits of terms that cancel.
        wide = eager.dtype in (torch.float64, torch.complex128)
        limit = self.scale if wide or without_digits(size, usual) else size
        only_rounding = usual <= limit * math.sqrt(torch.finfo(torch.float32 if wide else eager.dtype).eps)
        return Rounding(usual if only_rounding else None, max(found), whole)


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


def dtype_of_number(value: float | complex) -> torch.dtype:
    """Return the dtype that holds a number of Python's."""
    return torch.complex128 if isinstance(value, complex) else torch.float64


def _floats(execution: Execution) -> dict[str, torch.Tensor]:
    """Return every floating tensor of an execution under the name that reports give it."""
    after = {**execution.inputs_after, **execution.buffers_after}
    named = {**dict(execution.outputs), **execution.grads, **after}
    captured = {name: value for name, value in named.items() if isinstance(value, Captured)}
    floats = {name: value.value for name, value in captured.items() if is_float(value.dtype)}
    numbers = {name: value for name, value in execution.outputs if isinstance(value, float | complex)}
    return {**floats, **{name: torch.tensor(value, dtype=dtype_of_number(value)) for name, value in numbers.items()}}


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


__all__ = ["MORE_RUNS", "RUNS", "Noise", "NoiseSource", "dtype_of_number", "judged"]
