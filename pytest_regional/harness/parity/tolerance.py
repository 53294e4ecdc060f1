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
What rounding does to eager, measured in runs that are rounded otherwise (``noise``), widens that. One and
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
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from pytest_regional.harness.parity.fp64_reference import Precision
from pytest_regional.harness.parity.state import raw_bytes

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
    torch.complex32: (1e-3, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
#: Narrower dtypes in which a result may have been computed; what that costs float64, its tolerance shows.
_NARROWER = {torch.float32: (torch.bfloat16, torch.float16)}
_REAL_OF = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}


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
            raise ValueError(f"level={level!r} is unknown; the levels are {', '.join(LEVELS)}.{_meant(str(level))}")
        for name, value in (("rtol", rtol), ("atol", atol)):
            _check_number(name, value, level)
        return cls(level, rtol, atol)

    @property
    def explicit(self) -> bool:
        """True where the user's numbers replace the level's rule."""
        return self.rtol is not None or self.atol is not None

    @property
    def uses_fp64(self) -> bool:
        """True where the rule is earned from a float64 run."""
        return self.level == "close" and not self.explicit

    def constants(self, dtype: torch.dtype) -> tuple[float, float]:
        """Return ``(rtol, atol)`` for ``dtype``; a number the user left out is that of ``assert_close``."""
        rtol, atol = DEFAULT_TOLERANCES.get(dtype, (_float_epsilon(dtype), 0.0))
        return (rtol if self.rtol is None else self.rtol), (atol if self.atol is None else self.atol)


def _meant(level: str) -> str:
    word = level.lower()
    near = [_OTHER_NAMES[word]] if word in _OTHER_NAMES else difflib.get_close_matches(word, LEVELS, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _check_number(name: str, value: Any, level: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r} must be a number, not {type(value).__name__}")
    if math.isnan(value) or value < 0:
        raise ValueError(f"{name}={value!r} must not be negative or NaN")
    if level == "bitwise":
        raise ValueError(f"{name}={value!r} contradicts level='bitwise', which allows no difference; leave one out")


def _float_epsilon(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps) if dtype.is_floating_point else 0.0


def ulp(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the spacing of floating ``dtype`` at the magnitude of each float64 element of ``values``."""
    info = torch.finfo(dtype)
    magnitude = values.abs().clamp(min=info.tiny, max=info.max).nan_to_num(info.tiny)
    exponent = torch.frexp(magnitude).exponent - 1
    return torch.ldexp(torch.full_like(magnitude, info.eps), exponent)


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
    """How far off two tensors of floats are: the largest errors of their elements.

    Attributes:
        candidate: of the compiled program, from the float64 run where there is one, else from eager.
        eager: of eager from the float64 run; ``None`` without one.
        allowed: what was allowed where the compiled program came nearest to its limit.
    """

    candidate: float
    eager: float | None
    allowed: float


class Rounding(NamedTuple):
    """How far rounding moves a tensor, over runs that are rounded otherwise.

    Attributes:
        usual: of the largest distances of an element, the median; None where more than rounding differed.
        largest: of the largest distances of an element, the largest.
        root_mean_square: of the distances' root mean squares, the largest.
    """

    usual: float | None
    largest: float
    root_mean_square: float


@dataclass(frozen=True)
class Verdict:
    """The verdict over one pair of tensors: what differs, the largest error over the allowed one, anchored or not.

    ``errors`` are known for floats that are not compared by their bits. ``rounding_only``: the tensor holds no digit.
    """

    evidence: tuple[ValueEvidence, ...]
    ratio: float
    anchored: bool
    errors: Errors | None = None
    rounding_only: bool = False


class Exactness(NamedTuple):
    """What is known of a tensor whose elements every correct implementation computes alike.

    Attributes:
        zeros: whether zeros have the same sign as well.
    """

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
    """Compare two tensors of one shape.

    Args:
        tolerance: the level, or the user's numbers.
        candidate: of the compiled program.
        eager: of the eager program.
        fp64: of the float64 run, if there is one.
        coarse: what eager makes at the coarser precision in which the backend computes, if it does.
        noise: how far rounding moves the eager tensor, where that was measured.
        exact: what is known of elements that all correct implementations compute alike; then none may differ.
    """
    candidate = candidate.to(eager.device)
    fp64 = None if fp64 is None or fp64.shape != eager.shape else fp64.to(eager.device)
    if eager.numel() == 0:
        return Verdict((), 0.0, False)
    if tolerance.level == "bitwise":
        return _judge_bytes(candidate, eager, fp64)
    if exact is not None and coarse is None and not tolerance.explicit:
        return _judge_values(candidate, eager, zeros=exact.zeros)
    if not (eager.is_floating_point() or eager.is_complex()):
        if _flips(coarse, eager) and not tolerance.explicit:
            return Verdict((), 0.0, False)
        return _judge_exact(tolerance, candidate, eager)
    return _judge_floats(tolerance, candidate, eager, fp64, coarse, noise)


def _flips(coarse: Coarse | None, eager: torch.Tensor) -> bool:
    """Say whether a comparison or a choice of eager's ends otherwise in the backend's precision."""
    if coarse is None or coarse.value is None or coarse.value.shape != eager.shape:
        return False
    return not torch.equal(coarse.value.to(eager.device), eager)


def _judge_bytes(candidate: torch.Tensor, eager: torch.Tensor, fp64: torch.Tensor | None) -> Verdict:
    if candidate.dtype != eager.dtype:
        candidate = candidate.to(eager.dtype)
    differs = (raw_bytes(candidate) != raw_bytes(eager)).any(dim=1).reshape(eager.shape)
    if not bool(differs.any()):
        return Verdict((), 0.0, False)
    found = _evidence("value", differs, differs.double(), (candidate, eager, fp64), None)
    return Verdict((found,), math.inf, False)


def _judge_values(candidate: torch.Tensor, eager: torch.Tensor, *, zeros: bool) -> Verdict:
    """Allow no difference but between NaNs, and between 0.0 and -0.0 unless ``zeros`` counts those."""
    c, e = same_as_real(candidate, eager.is_complex()), same_as_real(eager)
    if not (eager.is_floating_point() or eager.is_complex()):
        c, e = candidate, eager  # float64 does not hold all integers of 64 bits
    elif zeros:
        c, e = torch.stack((c, _signs_of_zeros(c)), -1), torch.stack((e, _signs_of_zeros(e)), -1)
    differs = (c != e) & ~(c.isnan() & e.isnan())
    differs = differs.reshape(*eager.shape, -1).any(-1)
    if not bool(differs.any()):
        return Verdict((), 0.0, False)
    found = _evidence("value", differs, differs.double(), (candidate, eager, None), torch.zeros(eager.shape))
    return Verdict((found,), math.inf, False)


def _signs_of_zeros(values: torch.Tensor) -> torch.Tensor:
    return torch.where(values == 0, values.signbit().double(), 0.0)


def _judge_exact(tolerance: Tolerance, candidate: torch.Tensor, eager: torch.Tensor) -> Verdict:
    if eager.dtype == torch.bool or not tolerance.explicit:
        differs = candidate != eager
        allowed = torch.zeros(eager.shape, dtype=torch.float64, device=eager.device)
    else:
        rtol, atol = tolerance.rtol or 0.0, tolerance.atol or 0.0
        allowed = atol + rtol * eager.double().abs()
        differs = (candidate.double() - eager.double()).abs() > allowed
    if not bool(differs.any()):
        return Verdict((), 0.0, False)
    error = torch.where(differs, (candidate.double() - eager.double()).abs().clamp(min=1e-300), 0.0)
    found = _evidence("value", differs, error, (candidate, eager, None), allowed)
    return Verdict((found,), math.inf, False)


def _judge_floats(
    tolerance: Tolerance,
    candidate: torch.Tensor,
    eager: torch.Tensor,
    fp64: torch.Tensor | None,
    coarse: Coarse | None,
    noise: Rounding | None,
) -> Verdict:
    dtype = _REAL_OF.get(eager.dtype, eager.dtype)
    coarse = coarse if coarse is not None and coarse.precision.is_coarser_than(dtype) else None
    c, e = same_as_real(candidate, eager.is_complex()), same_as_real(eager)
    a = None if fp64 is None else same_as_real(fp64, eager.is_complex())
    displaced = (c.isnan() != e.isnan()) | ((c.isinf() | e.isinf()) & (c != e) & ~(c.isnan() & e.isnan()))
    finite = c.isfinite() & e.isfinite()
    a = a if _is_usable(a, e, dtype) else None
    rounded = _rounded_like(coarse, e, eager.is_complex())
    if rounded is not None:
        displaced &= rounded.isfinite()
    reference = e if a is None or not tolerance.uses_fp64 else a
    errors_of_eager = None if a is None else torch.where(finite & a.isfinite(), (e - a).abs(), 0.0)
    rounding_only = tolerance.uses_fp64 and _is_rounding(reference, errors_of_eager, noise)
    error = torch.where(finite, (c - reference).abs(), 0.0)
    allowed = _allowed(tolerance, e, a, eager.dtype, dtype, _moved(noise, error, a, rounding_only))
    if coarse is not None and not tolerance.explicit:
        allowed = torch.maximum(allowed, _allowed_at(coarse.precision, tolerance, e, a, rounded))
    narrower = None
    if coarse is None and tolerance.uses_fp64 and not rounding_only:
        usual = _usual(tolerance, e, eager.dtype, dtype)
        narrower = _computed_in(dtype, c, e, finite, usual)
        allowed = allowed if narrower is None else torch.minimum(allowed, usual)
    beyond = finite & ~(error <= allowed)
    excess = torch.where(finite, _ratio(error, allowed), 0.0)
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


def without_digits(size: float, noise: float) -> bool:
    """Say whether a tensor whose largest element is ``size`` holds no digit, its elements being off by ``noise``."""
    return noise > 0 and size <= noise


def _is_rounding(reference: torch.Tensor, errors_of_eager: torch.Tensor | None, noise: Rounding | None) -> bool:
    size = _size(reference)
    if errors_of_eager is not None and (size or errors_of_eager.any()):
        return without_digits(size, float(errors_of_eager.max()))
    # Without a float64 run, or where eager's terms cancel exactly, runs that are rounded otherwise show the rounding.
    return noise is not None and without_digits(size, noise.usual or 0.0)


def _moved(noise: Rounding | None, error: torch.Tensor, a: torch.Tensor | None, rounding_only: bool) -> float:
    """Return the error that rounding explains, which is allowed :data:`EAGER_ERROR_FACTOR` times."""
    if noise is None:
        return 0.0
    if a is None or rounding_only:
        return noise.usual or 0.0
    # A kink moves a row, far; a fault in all of the tensor is larger on the whole than in its worst element.
    explained = min(ROUNDED_RUNS_FACTOR * noise.root_mean_square, MOST_EXPLAINED * root_mean_square(a))
    if root_mean_square(error) > explained:
        return 0.0
    return ROUNDED_RUNS_FACTOR * noise.largest / EAGER_ERROR_FACTOR


def root_mean_square(values: torch.Tensor) -> float:
    """Return that of the finite elements; 0 without any."""
    finite = values[values.isfinite()]
    return float(finite.square().mean().sqrt()) if finite.numel() else 0.0


def _size(values: torch.Tensor) -> float:
    finite = values[values.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def same_as_real(tensor: torch.Tensor, as_complex: bool | None = None) -> torch.Tensor:
    """Return ``tensor`` in float64, complex numbers (or all, ``as_complex``) as two in a last dimension."""
    if tensor.is_complex() if as_complex is None else as_complex:
        return torch.view_as_real(tensor.to(torch.complex128).resolve_conj())
    return tensor.real.double() if tensor.is_complex() else tensor.double()


def _is_usable(fp64: torch.Tensor | None, eager: torch.Tensor, dtype: torch.dtype) -> bool:
    """Say whether the float64 values can judge: finite, and within the dtype's range, wherever eager is finite.

    A mask filled with ``finfo(x.dtype).min`` is another number in float64; its distance would excuse everything.
    """
    if fp64 is None:
        return False
    where_finite = fp64[eager.isfinite()]
    return bool((where_finite.abs() <= torch.finfo(dtype).max).all())


def _allowed(
    tolerance: Tolerance,
    e: torch.Tensor,
    a: torch.Tensor | None,
    full_dtype: torch.dtype,
    dtype: torch.dtype,
    moved: float,
) -> torch.Tensor:
    constant = _usual(tolerance, e, full_dtype, dtype)
    if not tolerance.uses_fp64 or (a is None and not moved):
        return constant
    if a is None:
        return torch.maximum(constant, EAGER_ERROR_FACTOR * moved + ULPS * ulp(e, dtype))
    finite = e.isfinite() & a.isfinite()
    errors = (e - a).abs()[finite]
    measured = max(float(errors.max()) if errors.numel() else 0.0, moved)
    earned = EAGER_ERROR_FACTOR * measured + ULPS * ulp(a, dtype)
    # Nor does the float64 run refine a float64 output of a narrower program that never was rounded.
    weak = dtype == torch.float64 or errors.numel() <= FEW_ELEMENTS
    if dtype == torch.float64 and errors.numel() <= FEW_ELEMENTS and bool(errors.any()):
        constant = _usual(tolerance, e, torch.float32, torch.float32)
    return torch.maximum(earned, constant) if weak else earned


def _usual(tolerance: Tolerance, e: torch.Tensor, full_dtype: torch.dtype, dtype: torch.dtype) -> torch.Tensor:
    """Return what is allowed where no float64 run says how exact eager is."""
    if tolerance.uses_fp64 and dtype == torch.float64:
        return FLOAT64_ULPS * ulp(torch.full_like(e, _size(e)), dtype)
    rtol, atol = tolerance.constants(full_dtype)
    return atol + rtol * e.abs()


def _computed_in(
    dtype: torch.dtype, c: torch.Tensor, e: torch.Tensor, finite: torch.Tensor, usual: torch.Tensor
) -> torch.dtype | None:
    """Return the narrower dtype in which the compiled program computed numbers that eager computed in ``dtype``."""
    where = finite & (c != 0) & (e != 0)
    differ = (c - e).abs() > usual
    if int(where.sum()) <= FEW_ELEMENTS or 2 * int((where & differ).sum()) < int(where.sum()):
        return None
    for narrow in _NARROWER.get(dtype, ()):
        fits_c, fits_e = (values[where].to(narrow).double() == values[where] for values in (c, e))
        if bool(fits_c.all()) and 2 * int(fits_e.sum()) < fits_e.numel():
            return narrow
    return None


def _rounded_like(coarse: Coarse | None, e: torch.Tensor, as_complex: bool) -> torch.Tensor | None:
    if coarse is None or coarse.value is None:
        return None
    rounded = same_as_real(coarse.value.to(e.device), as_complex)
    return rounded if rounded.shape == e.shape else None


def _allowed_at(
    precision: Precision, tolerance: Tolerance, e: torch.Tensor, a: torch.Tensor | None, rounded: torch.Tensor | None
) -> torch.Tensor:
    """Return what is allowed of a backend that computes in ``precision``: what that costs eager, as it was measured."""
    rtol, atol = DEFAULT_TOLERANCES[precision.usual]
    constant = atol + rtol * e.abs()
    if a is None or rounded is None or not tolerance.uses_fp64:
        return constant
    finite = rounded.isfinite() & a.isfinite()
    noise = (rounded - a).abs()[finite]
    spacing = ulp(a, precision.dtype) * (precision.eps / torch.finfo(precision.dtype).eps)
    earned = EAGER_ERROR_FACTOR * (noise.max() if noise.numel() else 0.0) + ULPS * spacing
    return torch.maximum(earned, constant) if noise.numel() <= FEW_ELEMENTS else earned


def _ratio(error: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    return torch.where(error == 0, 0.0, error / allowed)


def _evidence(
    kind: str,
    where: torch.Tensor,
    excess: torch.Tensor,
    values: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
    allowed: torch.Tensor | None,
    computed_in: torch.dtype | None = None,
) -> ValueEvidence:
    ranked = torch.where(where, excess.nan_to_num(math.inf), -1.0)
    flat = int(ranked.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), where.shape)) if where.dim() else ()
    c, e, a = (None if value is None else value[index].item() for value in values)
    return ValueEvidence(
        kind=kind,
        index=index,
        candidate=c,
        eager=e,
        fp64=a,
        candidate_error=_distance(c, e if a is None else a),
        eager_error=None if a is None else _distance(e, a),
        allowed=None if allowed is None else float(allowed[index]),
        mismatched=int(where.sum()),
        total=where.numel(),
        computed_in=computed_in,
    )


def _distance(first: Any, second: Any) -> float:
    return float(abs(first - second))
