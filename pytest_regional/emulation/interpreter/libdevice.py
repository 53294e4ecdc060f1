"""CUDA's math library by the names of its functions (``__nv_expf``), computed with numpy and torch.

Accuracy is that of numpy and torch, which is at least that of libdevice; the last bits differ from a GPU's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from pytest_regional.emulation.errors import UnsupportedByEmulationError
from pytest_regional.emulation.interpreter.arithmetic import fused_multiply_add, unsigned_product_high
from pytest_regional.emulation.interpreter.values import Array, TensorHandle, convert, numpy_type

Function = Callable[..., Array]


def _of_torch(function: Callable[..., torch.Tensor]) -> Function:
    def compute(*arrays: Array) -> Array:
        tensors = [torch.from_numpy(np.array(array)) for array in np.broadcast_arrays(*arrays)]
        result: Array = function(*tensors).numpy()
        return result

    return compute


def _half_away_from_zero(x: Array) -> Array:
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(1, x), whole)


def _exponent(x: Array) -> Array:
    special = np.where(np.isinf(x), 2**31 - 1, -(2**31))
    return np.where(np.isfinite(x) & (x != 0), np.frexp(x)[1] - 1, special)


def _exponent_as_float(x: Array) -> Array:
    return np.where(np.isfinite(x) & (x != 0), np.frexp(x)[1] - 1, np.where(x == 0, -np.inf, x * x))


def _ieee_remainder(x: Array, y: Array) -> Array:
    low = np.fmod(x, y)
    magnitude, quotient = np.abs(y), np.trunc(x / y)
    twice = 2 * np.abs(low)
    further = (twice > magnitude) | ((twice == magnitude) & (np.fmod(quotient, 2) != 0))
    return np.where(further, low - np.copysign(magnitude, low), low)


def _scaled(x: Array, exponent: Array) -> Array:
    return np.asarray(np.ldexp(x, exponent.astype(np.int32)))


def _gamma(x: Array) -> Array:
    magnitude = np.exp(_of_torch(torch.lgamma)(x))
    negative = (x < 0) & (np.fmod(np.floor(x), 2) != 0)
    pole = (x <= 0) & (x == np.floor(x))
    return np.where(pole & (x < 0), np.nan, np.where(negative, -magnitude, magnitude)).astype(x.dtype)


def _norm(*components: Array) -> Array:
    return np.asarray(np.sqrt(sum(np.square(c, dtype=np.float64) for c in components))).astype(components[0].dtype)


def _bits_set(x: Array) -> Array:
    octets = np.ascontiguousarray(x).view(np.uint8).reshape(*x.shape, x.dtype.itemsize)
    return np.asarray(np.unpackbits(octets, axis=-1).sum(axis=-1, dtype=np.int32))


def _leading_zeros(x: Array) -> Array:
    bits = x.dtype.itemsize * 8
    unsigned = x.view(np.dtype(f"u{x.dtype.itemsize}"))
    for shift in (1, 2, 4, 8, 16, 32):
        if shift < bits:
            unsigned = unsigned | (unsigned >> unsigned.dtype.type(shift))
    return bits - _bits_set(unsigned)


def _first_set(x: Array) -> Array:
    lowest = x & -x
    return np.where(x == 0, 0, x.dtype.itemsize * 8 - _leading_zeros(lowest))


_FUNCTIONS: dict[str, Function] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "exp10": lambda x: np.power(x.dtype.type(10), x),
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "logb": _exponent_as_float,
    "ilogb": _exponent,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "sinpi": lambda x: np.sin(np.fmod(x, 2) * np.pi),
    "cospi": lambda x: np.cos(np.fmod(x, 2) * np.pi),
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": _of_torch(torch.erf),
    "erfc": _of_torch(torch.erfc),
    "erfcx": _of_torch(torch.special.erfcx),
    "erfinv": _of_torch(torch.erfinv),
    "erfcinv": lambda x: _of_torch(torch.erfinv)(1 - x),
    "normcdf": _of_torch(torch.special.ndtr),
    "normcdfinv": _of_torch(torch.special.ndtri),
    "lgamma": _of_torch(torch.lgamma),
    "tgamma": _gamma,
    "j0": _of_torch(torch.special.bessel_j0),
    "j1": _of_torch(torch.special.bessel_j1),
    "y0": _of_torch(torch.special.bessel_y0),
    "y1": _of_torch(torch.special.bessel_y1),
    "cyl_bessel_i0": _of_torch(torch.special.i0),
    "cyl_bessel_i1": _of_torch(torch.special.i1),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "cbrt": np.cbrt,
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "rcp": np.reciprocal,
    "pow": np.power,
    "powi": np.power,
    "fmod": np.fmod,
    "remainder": _ieee_remainder,
    "hypot": np.hypot,
    "rhypot": lambda x, y: 1 / np.hypot(x, y),
    "norm3d": _norm,
    "norm4d": _norm,
    "rnorm3d": lambda *c: 1 / _norm(*c),
    "rnorm4d": lambda *c: 1 / _norm(*c),
    "copysign": np.copysign,
    "nextafter": np.nextafter,
    "fdim": lambda x, y: np.where(x > y, x - y, np.where(np.isnan(x) | np.isnan(y), np.nan, 0)),
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "nearbyint": np.rint,
    "rint": np.rint,
    "round": _half_away_from_zero,
    "llrint": np.rint,
    "llround": _half_away_from_zero,
    "abs": np.abs,
    "fabs": np.abs,
    "llabs": np.abs,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "finite": np.isfinite,
    "isfinite": np.isfinite,
    "signbit": np.signbit,
    "ldexp": _scaled,
    "scalbn": _scaled,
    "saturate": lambda x: np.where(np.isnan(x), 0, np.clip(x, 0, 1)),
    "fma": fused_multiply_add,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "divide": np.divide,
    "popc": _bits_set,
    "clz": _leading_zeros,
    "ffs": _first_set,
    "mulhi": lambda x, y: _signed_product_high(x, y),
    "umulhi": unsigned_product_high,
}


def _signed_product_high(x: Array, y: Array) -> Array:
    high = unsigned_product_high(x, y)
    zero = x.dtype.type(0)
    return np.asarray(high - np.where(x < 0, y, zero) - np.where(y < 0, x, zero))


# Names that the rules of _plain_name do not reach.
_ALIASES = {
    "popcll": "popc",
    "clzll": "clz",
    "ffsll": "ffs",
    "mul64hi": "mulhi",
    "umul64hi": "umulhi",
    "isinfd": "isinf",
    "isnand": "isnan",
    "isfinited": "isfinite",
    "signbitd": "signbit",
    "fast_fdividef": "divide",
    "fdim": "fdim",
    "fmod": "fmod",
    "erf": "erf",
}


@cache
def elementwise(symbol: str) -> Function:
    """Return the function called ``symbol``, with or without ``__nv_``.

    Raises:
        UnsupportedByEmulationError: if the table has none.
    """
    name = symbol.removeprefix("__nv_")
    for candidate in _plain_names(name):
        found = _FUNCTIONS.get(_ALIASES.get(candidate, candidate))
        if found is not None:
            return found
    raise UnsupportedByEmulationError(f"libdevice function {symbol}")


def _plain_names(name: str) -> list[str]:
    """Return what ``name`` may be without its marks for types, speed and rounding to nearest."""
    plain = name.removeprefix("fast_").removesuffix("_rn")
    rounded = plain[1:] if name.endswith("_rn") and plain[:1] in {"f", "d"} and plain != "fma" else plain
    return [name, plain, rounded, plain.removesuffix("f"), rounded.removesuffix("f")]


def call(symbol: str, arguments: Sequence[Any], result_type: Any) -> Any:
    """Call the function on the arguments' handles and return a handle of ``result_type``."""
    scalar = result_type.scalar
    result = np.asarray(elementwise(symbol)(*[argument.data for argument in arguments]))
    if result.dtype.kind == "f" and scalar.is_int():
        return TensorHandle(convert(result, arguments[0].dtype.scalar, scalar), scalar)
    return TensorHandle(result.astype(numpy_type(scalar), copy=False), scalar)
