"""Pointwise functions of floating-point numbers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from .case import HALVES, SINGLE, WIDE, Case, Defect
from .inputs import PAIR, SQUARE, normal, uniform

SPECIALS = (1.0, math.nan, math.inf, -math.inf, -0.0, 0.0, 3.0, -2.5)


def activations(a):
    return F.relu6(a), F.hardswish(a), F.mish(a), F.elu(a), F.softplus(a), F.leaky_relu(a), F.hardtanh(a), F.celu(a)


def trigonometric(a):
    return a.sin(), a.cos(), a.tan(), a.atan(), torch.sinc(a)


def inverse_trigonometric(a):
    return a.asin(), a.acos(), a.atanh(), (a + 2).acosh(), a.asinh()


def exponentials(a):
    return a.exp(), a.exp2(), a.expm1(), a.log(), a.log2(), a.log10(), a.log1p()


def special_functions(a):
    return torch.lgamma(a + 0.5), torch.erfinv(a * 0.9), torch.erfc(a)


def rounding(a):
    return a.round(), a.floor(), a.ceil(), a.trunc(), a.sign(), a.frac(), a.round(decimals=1)


def remainders(a, b):
    return torch.fmod(a, b), torch.remainder(a, b), torch.div(a, b, rounding_mode="floor"), a // b.abs()


def two_arguments(a, b):
    return torch.copysign(a, b), torch.hypot(a, b), torch.atan2(a, b), torch.logaddexp(a, b), torch.xlogy(a, b.abs())


def classification(a):
    return a.isnan(), a.isinf(), torch.nan_to_num(a), a.signbit(), torch.isfinite(a), a == a, a.sgn()


def extremes_of_nan(a):
    b = a.flip(0)
    return torch.maximum(a, b), torch.minimum(a, b), torch.fmax(a, b), torch.fmin(a, b), a.clamp(-1, 2), a.relu()


def comparisons(a, b):
    return (a > 0) & (b > 0), (a > 0) | ~(b < 1), (a > 0).logical_xor(b > 0), a.ge(b), a.ne(b), torch.isclose(a, b)


def arithmetic_in_float64(a):
    return a.double().sin().to(a.dtype), a.double() / 3 + 0.1


CASES = [
    Case("tanh_erf_exp", lambda a: torch.tanh(a) + torch.erf(a) + torch.exp(a), SQUARE, backward=True, dtypes=HALVES),
    Case("gelu", F.gelu, SQUARE, backward=True, dtypes=HALVES),
    Case("gelu_tanh", lambda a: F.gelu(a, approximate="tanh"), SQUARE, backward=True),
    Case("silu_mul", lambda a, b: F.silu(a) * b, PAIR, backward=True, dtypes=HALVES),
    Case("pow_float", lambda a: a.abs() ** 1.5, SQUARE, backward=True),
    Case("pow_tensor", lambda a, b: a.abs() ** b, PAIR),
    Case("where_clamp", lambda a, b: torch.where(a > 0, a.clamp(-0.5, 0.7), b.clamp_min(0)), PAIR, backward=True),
    Case("activations", activations, SQUARE, backward=True),
    Case("trigonometric", trigonometric, SQUARE, backward=True),
    Case("trigonometric_large", lambda a: (a.sin(), a.cos()), uniform((40, 50), low=-9e4, high=9e4), dtypes=WIDE),
    Case("inverse_trigonometric", inverse_trigonometric, uniform((64, 96), low=-0.9, high=0.9)),
    Case("hyperbolic", lambda a: (a.sinh(), a.cosh(), a.tanh()), SQUARE),
    Case("exponentials", exponentials, uniform((64, 96), low=0.1, high=3.0), backward=True),
    Case("special_functions", special_functions, uniform((64, 96), low=0.05, high=0.95)),
    Case(
        "error_functions",
        lambda a: (torch.special.erfcx(a), torch.special.ndtri(a), torch.special.ndtr(a)),
        uniform((64, 96), low=0.05, high=0.95),
        dtypes=WIDE,
    ),
    Case(
        "bessel", lambda a: (torch.special.i0(a), torch.special.i1(a), torch.special.bessel_j0(a)), SQUARE, dtypes=WIDE
    ),
    Case("digamma", lambda a: torch.digamma(a.abs() + 1), SQUARE),
    Case("polygamma", lambda a: torch.special.polygamma(1, a.abs() + 1), SQUARE, dtypes=WIDE),
    Case("rounding", rounding, SQUARE),
    Case("remainders", remainders, PAIR),
    Case("two_arguments", two_arguments, PAIR),
    Case(
        "classification",
        classification,
        lambda: (torch.tensor(SPECIALS),),
        defect=Defect("signbit_of_float64", mended=(2, 15), dtypes=("f64",)),
    ),
    Case("extremes_of_nan", extremes_of_nan, lambda: (torch.tensor(SPECIALS),)),
    Case("comparisons", comparisons, PAIR),
    Case("frexp_ldexp", lambda a: (*torch.frexp(a), torch.ldexp(a, torch.full_like(a, 3))), SQUARE, dtypes=WIDE),
    Case("nextafter", lambda a, b: torch.nextafter(a, b), PAIR, dtypes=SINGLE),
    Case(
        "roots",
        lambda a: (a.sqrt(), a.rsqrt(), a.reciprocal(), a.square()),
        uniform((64, 96), low=0.1, high=4.0),
        backward=True,
    ),
    Case("lerp_addcmul", lambda a, b: (torch.lerp(a, b, 0.3), torch.addcmul(a, a, b, value=2)), PAIR, backward=True),
    Case("sigmoid_logit", lambda a: (a.sigmoid(), torch.logit(a)), uniform((64, 96), low=0.1, high=0.9), backward=True),
    Case("broadcasting", lambda a, b, c: (a + b) * c, normal((8, 1, 5), (1, 7, 5), (5,)), backward=True),
    Case("scalars", lambda a, b: a * 2.5 + b - 3 * a / 7, normal((33,), ()), dtypes=HALVES),
    Case("single_element", lambda a: a.sin() + 1, normal((1,)), dtypes=HALVES),
    Case("no_dimensions", lambda a: a.exp() * 2, normal(()), backward=True),
    Case("empty", lambda a, b: (a.sin(), b.cos()), normal((0, 5), (3, 4))),
    Case("float64_inside", arithmetic_in_float64, SQUARE),
]
