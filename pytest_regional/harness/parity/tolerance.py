"""How far two tensors may be apart: three named levels, and the user's own ``rtol``/``atol``.

``close`` earns its tolerance from a float64 run of the eager program. Element by element::

    |compiled - f64| <= 4 * max|eager - f64| + 2 ulp

One ulp is the spacing of the *output's* dtype at the magnitude of the float64 element (never below the spacing at the
smallest normal number): it is what a single rounding of the exact value can cost, so a program that computes in higher
precision and rounds once always passes, however exact eager was. Complex numbers count as two real ones. Without a
float64 run the level falls back to the defaults of :func:`torch.testing.assert_close`, which is the level ``dtype``;
but for float64 these are too wide, as they allow what float32 costs: 64 ulp of the tensor's largest element instead.
A float32 tensor whose numbers all are of bfloat16 or float16, where most of eager's are not, and most of which differ
by more than these defaults, was computed in that dtype: it gets no more, however large eager's own error is.
A tensor of at most 16 elements is also given what ``dtype`` gives: the largest of a handful of errors says little
about eager's noise (measured: a mean over 4,096 float32 numbers, summed in another order, alarmed in 4.7 % of runs; of
60,000 gradients of 16 elements of a small feed-forward block, 6 alarmed; of 70,000 with 32 or 512 elements, none).
What rounding does to eager, measured in runs that are rounded otherwise (:class:`Noise`), widens that. One and
a half times the largest error of those runs is allowed, where that is more: eager's own error was luck, or rounding
decides on which side of a kink a value falls. On the whole, as a root mean square, the error may then be one and a
half times the largest of those runs too, and 0.4 of the tensor. A tensor whose float64 values are all below
eager's error holds *no digit*: it is what rounding left of terms that cancel, and may be four times as large as those
runs made it; so may a tensor that is exactly zero in eager and float64, where those runs are not. And without a float64
run, ``close`` allows four times what rounding moves the tensor by, where that is more than ``dtype`` allows.
Of a backend that computes in a coarser precision, the error that eager has in that one counts where it is larger.
``bitwise`` wants equal bytes, NaN payloads and the sign of zero included.
"""

from __future__ import annotations

import difflib
import functools
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from pytest_regional.harness.parity.captured import Captured
from pytest_regional.harness.parity.execution import Execution
from pytest_regional.harness.parity.precision import Precision, is_float, ulp
from pytest_regional.harness.parity.state import raw_bytes, same_bytes

LEVELS = ("close", "dtype", "bitwise")
#: What other tools call the levels; the spelling of none of these is near the name of the level that is meant.
_OTHER_NAMES = {
    **dict.fromkeys(("exact", "exactly", "equal", "identical", "strict", "bits"), "bitwise"),
    **dict.fromkeys(("assert_close", "allclose", "default", "loose"), "dtype"),
    **dict.fromkeys(("float64", "fp64", "anchored"), "close"),
}
EAGER_ERROR_FACTOR = 4.0
ROUNDED_RUNS_FACTOR = 1.5
MOST_EXPLAINED = 0.4
ULPS = 2.0
FEW_ELEMENTS = 16
#: Float64 results that nothing wider can judge. Computed in float32 they are off by 2**29 times one unit.
FLOAT64_ULPS = 64

# The documented defaults of torch.testing.assert_close, as (rtol, atol); a test holds them against the function itself.
DEFAULT_TOLERANCES: dict[torch.dtype, tuple[float, float]] = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
}


@dataclass(frozen=True)
class Tolerance:
    """A level, or explicit tolerances, or both; make one with :meth:`resolve`, which checks them."""

    level: str = "close"
    rtol: float | None = None
    atol: float | None = None

    @classmethod
    def resolve(cls, level: str = "close", rtol: float | None = None, atol: float | None = None) -> Tolerance:
        """Return the tolerance of ``level``, overridden by ``rtol`` and ``atol`` where given.

        Raises:
            ValueError: for an unknown level, or a tolerance that is negative or NaN, or one given for "bitwise".
            TypeError: for a tolerance that is no number.
        """
        if level not in LEVELS:
            word = str(level).lower()
            near = [_OTHER_NAMES[word]] if word in _OTHER_NAMES else difflib.get_close_matches(word, LEVELS, n=1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"level={level!r} is unknown; the levels are {', '.join(LEVELS)}.{meant}")
        given: dict[str, Any] = {"rtol": rtol, "atol": atol}
        for name, value in given.items():
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"{name}={value!r} must be a number, not {type(value).__name__}")
            if math.isnan(value) or value < 0:
                raise ValueError(f"{name}={value!r} must not be negative or NaN")
            if level == "bitwise":
                raise ValueError(
                    f"{name}={value!r} contradicts level='bitwise', which allows no difference; leave one out"
                )
        return cls(level, rtol, atol)

    @property
    def explicit(self) -> bool:
        """True where the user's numbers replace the level's rule."""
        return self.rtol is not None or self.atol is not None

    @property
    def uses_fp64(self) -> bool:
        """True where the rule is earned from a float64 run."""
        return self.level == "close" and not self.explicit


@dataclass(frozen=True)
class ValueEvidence:
    """One way in which two tensors differ: the worst element, and how far it is beyond what is allowed.

    ``kind`` is "value" or "nan" (a NaN or infinity stands elsewhere). The float64 fields are None without a float64
    run; then ``candidate_error`` is the distance from eager. ``computed_in`` is a narrower dtype that holds all
    numbers of the compiled program and few of eager's.
    """

    kind: str
    index: tuple[int, ...]
    candidate: Any
    eager: Any
    fp64: float | None
    candidate_error: float | None
    eager_error: float | None
    allowed: float | None
    mismatched: int
    total: int
    computed_in: torch.dtype | None = None


class Errors(NamedTuple):
    """How far off two tensors of floats are: the largest errors of their elements."""

    candidate: float  # of the compiled program, from the float64 run where there is one, else from eager
    eager: float | None  # of eager from the float64 run; ``None`` without one
    allowed: float  # what was allowed where the compiled program came nearest to its limit


class Rounding(NamedTuple):
    """How far rounding moves a tensor, over runs that are rounded otherwise."""

    usual: float | None  # of the largest distances of an element, the median; None where more than rounding differed
    largest: float  # of the largest distances of an element, the largest
    root_mean_square: float  # of the distances' root mean squares, the largest


@dataclass(frozen=True)
class Verdict:
    """The verdict over one pair of tensors: what differs, the largest error over the allowed one, anchored or not.

    ``errors`` are known for floats that are not compared by their bits. ``rounding_only``: the tensor holds no digit.
    """

    evidence: tuple[ValueEvidence, ...] = ()
    ratio: float = 0.0
    anchored: bool = False
    errors: Errors | None = None
    rounding_only: bool = False


Tensors = Mapping[str, torch.Tensor]
NoiseSource = Callable[[int], "Noise"]
"""Makes so many runs when it is asked, which most comparisons never do."""


@dataclass(frozen=True, eq=False)
class Noise:
    """How large the rounding of an eager program is: results of runs on one set of inputs, each rounded otherwise.

    Eager's distance from a float64 run is one sample of that. It says too little where there is no float64 run; where a
    value is zero in theory (the gradient of a bias before a normalization), as another order of the same sums leaves
    several times as much of the terms that cancel; and where rounding decides on which side of a kink a value falls
    (ReLU, a maximum), or was lucky: under bfloat16 autocast other orders leave 2 to 10 times as much in small models.
    """

    runs: tuple[Tensors, ...]  # the floating tensors of each run, by the names that reports give them
    scale: float  # the largest magnitude of any floating tensor of the plain eager run

    @classmethod
    def source(cls, eager: Tensors, run: Callable[[int], Tensors | None]) -> NoiseSource:
        """Return what calls ``run`` with as many seeds as asked, with each once; a run of None says nothing."""
        scale = max((_size(same_as_real(value)) for value in eager.values()), default=0.0)
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
            if one.exception is not None or one.structure != eager.structure:
                return None
            pairs = zip(eager.outputs, one.outputs, strict=True)
            return _floats(one) if all(_alike(first, second) for (_, first), (_, second) in pairs) else None

        return cls.source(_floats(eager), floats)

    def of(self, where: str, eager: torch.Tensor, fp64: torch.Tensor | None) -> Rounding | None:
        """Return how far rounding moves the tensor called ``where``; None from fewer than three runs."""
        if not is_float(eager.dtype):
            return None
        reference = same_as_real(eager if fp64 is None else fp64)
        runs = [same_as_real(run[where]) for run in self.runs if where in run]
        moved = [run - reference for run in runs if run.shape == reference.shape]
        if len(moved) < 3:
            return None
        largest, size = [_size(one) for one in moved], _size(reference)
        usual = statistics.median(largest)
        # A float64 program may narrow values itself, or leave a few digits of terms that cancel.
        wide = eager.dtype in (torch.float64, torch.complex128)
        limit = self.scale if wide or _without_digits(size, usual) else size
        only_rounding = usual <= limit * math.sqrt(torch.finfo(torch.float32 if wide else eager.dtype).eps)
        return Rounding(usual if only_rounding else None, max(largest), max(map(_root_mean_square, moved)))


def dtype_of_number(value: float | complex) -> torch.dtype:
    """Return the dtype that holds a number of Python's."""
    return torch.complex128 if isinstance(value, complex) else torch.float64


def _floats(execution: Execution) -> dict[str, torch.Tensor]:
    """Return every floating tensor of an execution under the name that reports give it."""
    floats = {name: one.value for name, one in execution.tensors().items() if is_float(one.dtype)}
    numbers = {name: value for name, value in execution.outputs if isinstance(value, float | complex)}
    return {**floats, **{name: torch.tensor(value, dtype=dtype_of_number(value)) for name, value in numbers.items()}}


def _alike(first: object, second: object) -> bool:
    if not isinstance(first, Captured) or not isinstance(second, Captured):
        return type(first) is type(second)
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return is_float(first.dtype) or same_bytes(first.value, second.value)


class Exactness(NamedTuple):
    """Says that every correct implementation computes the elements of a tensor alike; the signs of ``zeros``, too."""

    zeros: bool


class Coarse(NamedTuple):
    """The precision of a backend that computes in a coarser one than the program, and eager's value at it, if known."""

    precision: Precision
    value: torch.Tensor | None


def judge(
    tolerance: Tolerance,
    candidate: torch.Tensor,
    eager: torch.Tensor,
    fp64: torch.Tensor | None,
    coarse: Coarse | None = None,
    noise: Rounding | None = None,
    exact: Exactness | None = None,
) -> Verdict:
    """Compare a tensor of the compiled program with eager's of one shape, and with that of a float64 run, if any.

    ``coarse`` is what eager makes at the precision of a backend that computes in a coarser one. ``noise`` is how far
    rounding moves the eager tensor, where that was measured. With ``exact``, all correct implementations compute the
    elements alike, and none may differ.
    """
    candidate = candidate.to(eager.device)
    fp64 = None if fp64 is None or fp64.shape != eager.shape else fp64.to(eager.device)
    if eager.numel() == 0:
        return Verdict()
    if tolerance.level == "bitwise":
        candidate = candidate.to(eager.dtype)
        differs = (raw_bytes(candidate) != raw_bytes(eager)).any(dim=1).reshape(eager.shape)
        return _verdict(differs, differs.double(), (candidate, eager, fp64), None)
    if exact is not None and coarse is None and not tolerance.explicit:
        return _judge_values(candidate, eager, zeros=exact.zeros)
    if is_float(eager.dtype):
        return _judge_floats(tolerance, candidate, eager, fp64, coarse, noise)
    at_coarse = None if coarse is None or tolerance.explicit else coarse.value
    if at_coarse is not None and at_coarse.shape == eager.shape and not torch.equal(at_coarse.to(eager.device), eager):
        return Verdict()  # a comparison or a choice of eager's ends otherwise in the backend's precision
    return _judge_exact(tolerance, candidate, eager)


_Values = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


def _verdict(differs: torch.Tensor, error: torch.Tensor, values: _Values, allowed: torch.Tensor | None) -> Verdict:
    """Return the verdict over values that are right or wrong, however large the difference."""
    if not bool(differs.any()):
        return Verdict()
    return Verdict((_evidence("value", differs, error, values, allowed),), math.inf)


def _judge_values(candidate: torch.Tensor, eager: torch.Tensor, *, zeros: bool) -> Verdict:
    """Allow no difference but between NaNs, and between 0.0 and -0.0 unless ``zeros`` counts those."""
    c, e = same_as_real(candidate, eager.is_complex()), same_as_real(eager)
    if not is_float(eager.dtype):
        c, e = candidate, eager  # float64 does not hold all integers of 64 bits
    differs = (c != e) & ~(c.isnan() & e.isnan())
    if zeros and is_float(eager.dtype):
        differs |= (c == 0) & (e == 0) & (c.signbit() != e.signbit())
    differs = differs.reshape(*eager.shape, -1).any(-1)
    return _verdict(differs, differs.double(), (candidate, eager, None), torch.zeros(eager.shape))


def _judge_exact(tolerance: Tolerance, candidate: torch.Tensor, eager: torch.Tensor) -> Verdict:
    if eager.dtype == torch.bool or not tolerance.explicit:
        differs = candidate != eager
        allowed = torch.zeros(eager.shape, dtype=torch.float64, device=eager.device)
    else:
        rtol, atol = tolerance.rtol or 0.0, tolerance.atol or 0.0
        allowed = atol + rtol * eager.double().abs()
        differs = (candidate.double() - eager.double()).abs() > allowed
    error = torch.where(differs, (candidate.double() - eager.double()).abs().clamp(min=1e-300), 0.0)
    return _verdict(differs, error, (candidate, eager, None), allowed)


def _judge_floats(
    tolerance: Tolerance,
    candidate: torch.Tensor,
    eager: torch.Tensor,
    fp64: torch.Tensor | None,
    coarse: Coarse | None,
    noise: Rounding | None,
) -> Verdict:
    dtype = eager.dtype.to_real()
    coarse = coarse if coarse is not None and coarse.precision.is_coarser_than(dtype) else None
    c, e = same_as_real(candidate, eager.is_complex()), same_as_real(eager)
    a = None if fp64 is None else same_as_real(fp64, eager.is_complex())
    displaced = (c.isnan() != e.isnan()) | ((c.isinf() | e.isinf()) & (c != e) & ~(c.isnan() & e.isnan()))
    finite = c.isfinite() & e.isfinite()
    # A mask filled with finfo(x.dtype).min is another number in float64; its distance would excuse everything.
    if a is not None and not bool((a[e.isfinite()].abs() <= torch.finfo(dtype).max).all()):
        a = None
    rounded = None
    if coarse is not None and coarse.value is not None and coarse.value.shape == eager.shape:
        rounded = same_as_real(coarse.value.to(e.device), eager.is_complex())
        displaced &= rounded.isfinite()
    reference = e if a is None or not tolerance.uses_fp64 else a
    errors_of_eager = None if a is None else torch.where(finite & a.isfinite(), (e - a).abs(), 0.0)
    rounding_only = tolerance.uses_fp64 and _is_rounding(reference, errors_of_eager, noise)
    error = torch.where(finite, (c - reference).abs(), 0.0)
    allowed = _allowed(tolerance, e, a, dtype, _moved(noise, error, a, rounding_only))
    if coarse is not None and not tolerance.explicit:
        allowed = torch.maximum(allowed, _allowed_at(coarse.precision, tolerance, e, a, rounded))
    narrower = None
    if coarse is None and tolerance.uses_fp64 and not rounding_only:
        usual = _usual(tolerance, e, dtype)
        narrower = _computed_in(dtype, c, e, finite, usual)
        allowed = allowed if narrower is None else torch.minimum(allowed, usual)
    beyond = finite & ~(error <= allowed)
    excess = torch.where(finite & (error != 0), error / allowed, 0.0)
    found = []
    if bool(displaced.any()):
        found.append(_evidence("nan", displaced, displaced.double(), (c, e, a), None))
    if bool(beyond.any()):
        found.append(_evidence("value", beyond, excess, (c, e, a), allowed, narrower))
    nearest = int(excess.argmax())
    ratio = math.inf if bool(displaced.any()) else float(excess.flatten()[nearest])
    eager_error = None if errors_of_eager is None else float(errors_of_eager.max())
    errors = Errors(float(error.max()), eager_error, float(allowed.flatten()[nearest]))
    return Verdict(tuple(found), ratio, a is not None and tolerance.uses_fp64, errors, rounding_only)


def _without_digits(size: float, noise: float) -> bool:
    """Say whether a tensor whose largest element is ``size`` holds no digit, its elements being off by ``noise``."""
    return noise > 0 and size <= noise


def _is_rounding(reference: torch.Tensor, errors_of_eager: torch.Tensor | None, noise: Rounding | None) -> bool:
    size = _size(reference)
    if errors_of_eager is not None and (size or errors_of_eager.any()):
        return _without_digits(size, float(errors_of_eager.max()))
    # Without a float64 run, or where eager's terms cancel exactly, runs that are rounded otherwise show the rounding.
    return noise is not None and _without_digits(size, noise.usual or 0.0)


def _moved(noise: Rounding | None, error: torch.Tensor, a: torch.Tensor | None, rounding_only: bool) -> float:
    """Return the error that rounding explains, which is allowed :data:`EAGER_ERROR_FACTOR` times."""
    if noise is None:
        return 0.0
    if a is None or rounding_only:
        return noise.usual or 0.0
    # A kink moves a row, far; a fault in all of the tensor is larger on the whole than in its worst element.
    explained = min(ROUNDED_RUNS_FACTOR * noise.root_mean_square, MOST_EXPLAINED * _root_mean_square(a))
    if _root_mean_square(error) > explained:
        return 0.0
    return ROUNDED_RUNS_FACTOR * noise.largest / EAGER_ERROR_FACTOR


def _root_mean_square(values: torch.Tensor) -> float:
    """Return that of the finite elements; 0 without any."""
    finite = values[values.isfinite()]
    return float(finite.square().mean().sqrt()) if finite.numel() else 0.0


def _size(values: torch.Tensor) -> float:
    """Return the largest magnitude of a finite element; 0 without any."""
    finite = values[values.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def same_as_real(tensor: torch.Tensor, as_complex: bool | None = None) -> torch.Tensor:
    """Return ``tensor`` in float64, complex numbers (or all, ``as_complex``) as two in a last dimension."""
    if tensor.is_complex() if as_complex is None else as_complex:
        return torch.view_as_real(tensor.to(torch.complex128).resolve_conj())
    return tensor.real.double() if tensor.is_complex() else tensor.double()


def _allowed(
    tolerance: Tolerance, e: torch.Tensor, a: torch.Tensor | None, dtype: torch.dtype, moved: float
) -> torch.Tensor:
    constant = _usual(tolerance, e, dtype)
    if not tolerance.uses_fp64 or (a is None and not moved):
        return constant
    if a is None:
        return torch.maximum(constant, EAGER_ERROR_FACTOR * moved + ULPS * ulp(e, dtype))
    errors = (e - a)[e.isfinite() & a.isfinite()]
    earned = EAGER_ERROR_FACTOR * max(_size(errors), moved) + ULPS * ulp(a, dtype)
    # Nor does the float64 run refine a float64 output of a narrower program that never was rounded.
    weak = dtype == torch.float64 or errors.numel() <= FEW_ELEMENTS
    if dtype == torch.float64 and errors.numel() <= FEW_ELEMENTS and bool(errors.any()):
        constant = _usual(tolerance, e, torch.float32)
    return torch.maximum(earned, constant) if weak else earned


def _usual(tolerance: Tolerance, e: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what is allowed where no float64 run says how exact eager is."""
    if tolerance.uses_fp64 and dtype == torch.float64:
        return FLOAT64_ULPS * ulp(torch.full_like(e, _size(e)), dtype)
    rtol, atol = DEFAULT_TOLERANCES.get(dtype, (torch.finfo(dtype).eps, 0.0))
    rtol = rtol if tolerance.rtol is None else tolerance.rtol
    atol = atol if tolerance.atol is None else tolerance.atol
    return atol + rtol * e.abs()


def _computed_in(
    dtype: torch.dtype, c: torch.Tensor, e: torch.Tensor, finite: torch.Tensor, usual: torch.Tensor
) -> torch.dtype | None:
    """Return the narrower dtype in which the compiled program computed numbers that eager computed in float32.

    What that costs float64, its tolerance shows.
    """
    where = finite & (c != 0) & (e != 0)
    few = int(where.sum()) <= FEW_ELEMENTS
    if dtype != torch.float32 or few or 2 * int((where & ((c - e).abs() > usual)).sum()) < int(where.sum()):
        return None
    for narrow in (torch.bfloat16, torch.float16):
        fits_c, fits_e = (values[where].to(narrow).double() == values[where] for values in (c, e))
        if bool(fits_c.all()) and 2 * int(fits_e.sum()) < fits_e.numel():
            return narrow
    return None


def _allowed_at(
    precision: Precision, tolerance: Tolerance, e: torch.Tensor, a: torch.Tensor | None, rounded: torch.Tensor | None
) -> torch.Tensor:
    """Return what is allowed of a backend that computes in ``precision``: what that costs eager, as it was measured."""
    rtol, atol = DEFAULT_TOLERANCES[precision.usual]
    constant = atol + rtol * e.abs()
    if a is None or rounded is None or not tolerance.uses_fp64:
        return constant
    noise = (rounded - a)[rounded.isfinite() & a.isfinite()]
    spacing = ulp(a, precision.dtype) * (precision.eps / torch.finfo(precision.dtype).eps)
    earned = EAGER_ERROR_FACTOR * _size(noise) + ULPS * spacing
    return torch.maximum(earned, constant) if noise.numel() <= FEW_ELEMENTS else earned


def _evidence(
    kind: str,
    where: torch.Tensor,
    excess: torch.Tensor,
    values: _Values,
    allowed: torch.Tensor | None,
    computed_in: torch.dtype | None = None,
) -> ValueEvidence:
    ranked = torch.where(where, excess.nan_to_num(math.inf), -1.0)
    flat = int(ranked.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), where.shape)) if where.dim() else ()
    numbers: list[Any] = [None if value is None else value[index].item() for value in values]
    c, e, a = numbers
    return ValueEvidence(
        kind=kind,
        index=index,
        candidate=c,
        eager=e,
        fp64=a,
        candidate_error=float(abs(c - (e if a is None else a))),
        eager_error=None if a is None else float(abs(e - a)),
        allowed=None if allowed is None else float(allowed[index]),
        mismatched=int(where.sum()),
        total=where.numel(),
        computed_in=computed_in,
    )
