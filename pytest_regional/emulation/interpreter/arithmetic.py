"""Arithmetic on numpy arrays with the results that a GPU gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import triton.language as tl

from pytest_regional.emulation.device import UnsupportedByEmulationError
from pytest_regional.emulation.interpreter.values import (
    Array,
    TensorHandle,
    as_numbers,
    convert,
    from_numbers,
    held_as_bits,
    numpy_type,
    rounded_to_tf32,
)

Operation = Callable[..., Array]

# Types whose arithmetic numpy does in the type itself, as it stands.
_NATIVE = frozenset({"fp32", "fp64", "int32", "int64", "uint32", "uint64"})


def _compares(operation: Operation, *, unordered: bool = False) -> Callable[[Any, Any, Any], Any]:
    """Return a ``create_*`` method that compares; an unordered one is also true where an operand is NaN."""

    def create(self: Any, lhs: Any, rhs: Any) -> Any:
        left, right = as_numbers(lhs.data, lhs.dtype.scalar), as_numbers(rhs.data, rhs.dtype.scalar)
        result = operation(left, right)
        if unordered:
            result = result | np.isnan(left) | np.isnan(right)
        return TensorHandle(result, tl.int1)

    return create


def _computes(operation: Operation) -> Callable[[Any, Any, Any], Any]:
    def create(self: Any, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, operation)

    return create


def _ordered_not_equal(left: Array, right: Array) -> Array:
    result: Array = (left < right) | (left > right)
    return result


def _truncated_quotient(left: Array, right: Array) -> Array:
    """Divide integers as C does; the result of a division by zero is not defined, here it is 0."""
    return np.asarray((left - np.fmod(left, right)) // right)


class Arithmetic:
    """The ``create_*`` methods for arithmetic, comparisons and conversions."""

    def binary_op(self, lhs: Any, rhs: Any, op: Operation) -> Any:
        """Compute ``op``, rounding to the operands' type."""
        scalar = lhs.dtype.scalar
        if scalar.name in _NATIVE:
            return TensorHandle(op(lhs.data, rhs.data), scalar)
        if held_as_bits(scalar):
            result = op(as_numbers(lhs.data, scalar), as_numbers(rhs.data, rhs.dtype.scalar))
            return TensorHandle(from_numbers(result, scalar), scalar)
        if scalar.name == "int1":
            wide = op(lhs.data.astype(np.int8), rhs.data.astype(np.int8))
            return TensorHandle((wide & 1).astype(np.bool_), scalar)
        result = op(lhs.data, rhs.data)
        return TensorHandle(result.astype(numpy_type(scalar), copy=False), scalar)

    def unary_op(self, arg: Any, op: Operation) -> Any:
        """Compute ``op``, rounding to the operand's type."""
        scalar = arg.dtype.scalar
        result = op(as_numbers(arg.data, scalar))
        if scalar.is_floating():
            return TensorHandle(from_numbers(np.asarray(result), scalar), scalar)
        return TensorHandle(np.asarray(result).astype(numpy_type(scalar), copy=False), scalar)

    def ternary_op(self, lhs: Any, rhs: Any, other: Any, op: Operation) -> Any:
        """Compute ``op`` of three, rounding to the last one's type."""
        scalar = other.dtype.scalar
        if held_as_bits(scalar):
            numbers = [as_numbers(operand.data, operand.dtype.scalar) for operand in (lhs, rhs, other)]
            return TensorHandle(from_numbers(op(*numbers), scalar), scalar)
        return TensorHandle(op(lhs.data, rhs.data, other.data).astype(numpy_type(scalar), copy=False), scalar)

    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        """Convert to another type; every ``create_*_to_*`` of Triton's interpreter ends here."""
        target = dst_type.scalar
        return TensorHandle(convert(src.data, src.dtype.scalar, target), target)

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding_mode: Any = None) -> Any:
        """Convert between floats; rounding towards zero happens only where the target is narrower."""
        if rounding_mode is not None and getattr(rounding_mode, "name", "RTNE") != "RTNE":
            return TensorHandle(_rounded_towards_zero(src, dst_type.scalar), dst_type.scalar)
        return self.cast_impl(src, dst_type)

    def create_select(self, condition: Any, lhs: Any, rhs: Any) -> Any:
        """Choose by condition; of bits, whatever they stand for."""
        chosen = np.where(condition.data, lhs.data, rhs.data)
        scalar = rhs.dtype.scalar
        return TensorHandle(chosen.astype(numpy_type(scalar), copy=False), scalar, dict(rhs.attr))

    def create_fabs(self, arg: Any) -> Any:
        """Return the absolute value."""
        return self.unary_op(arg, np.abs)

    def create_fma(self, x: Any, y: Any, z: Any) -> Any:
        """Multiply and add with one rounding for 32 bits and fewer (float64 rounds twice)."""
        return self.ternary_op(x, y, z, fused_multiply_add)

    def create_erf(self, arg: Any) -> Any:
        """Return the error function."""
        return self.unary_op(arg, elementwise("erf"))

    def create_rsqrt(self, arg: Any) -> Any:
        """Return one over the square root."""
        return self.unary_op(arg, lambda data: 1 / np.sqrt(data))

    def create_ashr(self, lhs: Any, rhs: Any) -> Any:
        """Shift right, filling with the sign."""
        signed = np.dtype(f"i{lhs.data.itemsize}")
        return self.binary_op(lhs, rhs, lambda left, right: left.view(signed) >> right.astype(signed))

    def create_lshr(self, lhs: Any, rhs: Any) -> Any:
        """Shift right, filling with zeros."""
        unsigned = np.dtype(f"u{lhs.data.itemsize}")
        return self.binary_op(
            lhs, rhs, lambda left, right: (left.view(unsigned) >> right.astype(unsigned)).view(left.dtype)
        )

    def create_umulhi(self, lhs: Any, rhs: Any) -> Any:
        """Return the upper half of the product of unsigned integers."""
        return TensorHandle(unsigned_product_high(lhs.data, rhs.data), lhs.dtype.scalar)

    def create_clampf(self, arg: Any, lo: Any, hi: Any, propagate_nans: Any) -> Any:
        """Clamp; NaN stays NaN only if asked for."""
        if getattr(propagate_nans, "name", "NONE") == "NONE":
            return self.binary_op(self.binary_op(arg, lo, np.fmax), hi, np.fmin)
        return self.binary_op(self.binary_op(arg, lo, np.maximum), hi, np.minimum)

    def create_dot(self, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        """Multiply matrices, accumulating in float32 (float64 and integers: their own type)."""
        target = d.dtype.scalar
        left, right = as_numbers(a.data, a.dtype.scalar), as_numbers(b.data, b.dtype.scalar)
        held = np.dtype(np.float32) if target.is_floating() and target != tl.float64 else numpy_type(target)
        if a.dtype.scalar == tl.float32 and getattr(input_precision, "name", "IEEE") == "TF32":
            left, right = rounded_to_tf32(left), rounded_to_tf32(right)
        product = np.matmul(left.astype(held, copy=False), right.astype(held, copy=False))
        total = product + as_numbers(d.data, target).astype(held, copy=False)
        return TensorHandle(from_numbers(total, target) if target.is_floating() else total, target)

    def create_histogram(self, data: Any, bins: int, mask: Any) -> Any:
        """Count integers below ``bins``; a GPU drops every other one."""
        numbers = data.data
        inside = (numbers >= 0) & (numbers < bins)
        if mask is not None:
            inside = inside & mask.data
        counts = np.bincount(numbers[inside].astype(np.int64), minlength=bins)
        return TensorHandle(counts.astype(np.int32), tl.int32)

    def get_all_ones_value(self, type: Any) -> Any:
        """Return an integer whose bits are all set."""
        dtype = numpy_type(type.scalar)
        ones = np.ones(1, dtype=np.bool_) if dtype == np.bool_ else np.full(1, -1, np.int64).astype(dtype)
        return TensorHandle(ones, type.scalar)

    create_idiv = _computes(_truncated_quotient)
    create_minnumf = _computes(np.fmin)
    create_maxnumf = _computes(np.fmax)
    create_fcmpOLT = _compares(np.less)
    create_fcmpOGT = _compares(np.greater)
    create_fcmpOLE = _compares(np.less_equal)
    create_fcmpOGE = _compares(np.greater_equal)
    create_fcmpOEQ = _compares(np.equal)
    create_fcmpONE = _compares(_ordered_not_equal)
    create_fcmpULT = _compares(np.less, unordered=True)
    create_fcmpUGT = _compares(np.greater, unordered=True)
    create_fcmpULE = _compares(np.less_equal, unordered=True)
    create_fcmpUGE = _compares(np.greater_equal, unordered=True)
    create_fcmpUEQ = _compares(np.equal, unordered=True)
    create_fcmpUNE = _compares(np.not_equal)
    create_icmpSLE = create_icmpULE = _compares(np.less_equal)
    create_icmpSLT = create_icmpULT = _compares(np.less)
    create_icmpSGE = create_icmpUGE = _compares(np.greater_equal)
    create_icmpSGT = create_icmpUGT = _compares(np.greater)
    create_icmpEQ = _compares(np.equal)
    create_icmpNE = _compares(np.not_equal)


def fused_multiply_add(x: Array, y: Array, z: Array) -> Array:
    """Return ``x * y + z``, computed in float64 so that float32 is rounded once."""
    product = np.multiply(x, y, dtype=np.float64)
    return np.asarray(np.add(product, z, dtype=np.float64)).astype(z.dtype)


def unsigned_product_high(left: Array, right: Array) -> Array:
    """Return the upper half of the bits of ``left * right``, taken as unsigned, in the type of ``left``."""
    bits = left.dtype.itemsize * 8
    unsigned = np.dtype(f"u{left.dtype.itemsize}")
    a, b = left.view(unsigned), right.view(unsigned)
    if bits < 64:
        wide = np.dtype(f"u{left.dtype.itemsize * 2}")
        product = a.astype(wide) * b.astype(wide)
        return np.asarray((product >> wide.type(bits)).astype(unsigned)).view(left.dtype)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a_high, a_low, b_high, b_low = a >> half, a & low, b >> half, b & low
    middle = a_high * b_low + ((a_low * b_low) >> half)
    carry = a_low * b_high + (middle & low)
    return np.asarray(a_high * b_high + (middle >> half) + (carry >> half)).view(left.dtype)


def _signed_product_high(x: Array, y: Array) -> Array:
    high = unsigned_product_high(x, y)
    zero = x.dtype.type(0)
    return np.asarray(high - np.where(x < 0, y, zero) - np.where(y < 0, x, zero))


def _rounded_towards_zero(src: Any, target: Any) -> Array:
    numbers = as_numbers(src.data, src.dtype.scalar)
    nearest = from_numbers(numbers, target)
    back = as_numbers(nearest, target)
    too_far = np.abs(back.astype(np.float64)) > np.abs(numbers.astype(np.float64))
    bits = np.dtype(f"u{numpy_type(target).itemsize}")
    # One less in the bits of a float is the next value towards zero, for either sign.
    return np.where(too_far, nearest.view(bits) - bits.type(1), nearest.view(bits)).view(numpy_type(target))


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
    "mulhi": _signed_product_high,
    "umulhi": unsigned_product_high,
}


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
