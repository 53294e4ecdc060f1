"""Integers of every width, booleans."""

from __future__ import annotations

import torch

from .case import SINGLE, Case
from .inputs import Inputs, integers

SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


def arithmetic(a, b):
    return a + b, a - b, a * b, torch.maximum(a, b), torch.minimum(a, b), torch.where(a > b, a, b), -a, a.abs(), a == b


def division(a, b):
    return a // b, a % b, torch.div(a, b, rounding_mode="trunc"), torch.fmod(a, b), a / b


def bits(a, b):
    return (
        (a & b) | (a ^ 3),
        ~b,
        a << 2,
        a >> 1,
        torch.bitwise_left_shift(a, b & 3),
        torch.bitwise_right_shift(a, b & 3),
    )


def sums(a, b):
    return a.sum(), a.amax(0), b.amin(1), (a > b).sum(1), a.argmax(1), a.prod(1, dtype=torch.int64), a.cumsum(0)


def conversions(a):
    return a.to(torch.int64), a.to(torch.float32), a.to(torch.int32) + 1, a.to(torch.uint8), a.to(torch.bool)


def full_range(dtype: torch.dtype) -> Inputs:
    """Return a drawer of two tensors over the whole range, so that sums and products wrap around."""
    info = torch.iinfo(dtype)
    return lambda: tuple(torch.randint(info.min, info.max, (40, 11), dtype=dtype) for _ in range(2))


def divisible(dtype: torch.dtype) -> Inputs:
    """Return a drawer of a dividend of either sign and a divisor that is not zero."""

    def draw() -> tuple[torch.Tensor, torch.Tensor]:
        low = 0 if dtype == torch.uint8 else -100
        dividend, divisor = torch.randint(low, 100, (40, 11)), torch.randint(1, 9, (40, 11))
        sign = 1 if dtype == torch.uint8 else torch.randint(0, 2, (40, 11)) * 2 - 1
        return dividend.to(dtype), (divisor * sign).to(dtype)

    return draw


def unsigned(dtype: torch.dtype) -> Inputs:
    """Return a drawer of a tensor of an unsigned dtype, half of its values beyond the signed range."""
    top = 2**63 - 1 if dtype == torch.uint64 else torch.iinfo(dtype).max
    return lambda: (torch.randint(0, top, (40, 11), dtype=torch.int64).to(dtype),)


def _named(function: object, dtype: torch.dtype) -> str:
    return f"{getattr(function, '__name__', '')}_{str(dtype).removeprefix('torch.')}"


CASES = [
    *(Case(_named(arithmetic, t), arithmetic, full_range(t), dtypes=SINGLE) for t in (*SIGNED, torch.uint8)),
    *(Case(_named(division, t), division, divisible(t), dtypes=SINGLE) for t in (*SIGNED, torch.uint8)),
    *(Case(_named(conversions, t), conversions, unsigned(t), dtypes=SINGLE) for t in UNSIGNED),
    Case("bits", bits, integers(0, 500, (300,), (300,)), dtypes=SINGLE),
    Case("bits_int8", bits, integers(-120, 120, (300,), (300,), dtype=torch.int8), dtypes=SINGLE),
    Case("pow_int", lambda a: a**3, integers(-9, 9, (50,)), dtypes=SINGLE),
    Case("sums_int32", sums, integers(-50, 50, (40, 6), (40, 6), dtype=torch.int32), dtypes=SINGLE),
    Case("sums_int8", sums, integers(-3, 4, (40, 6), (40, 6), dtype=torch.int8), dtypes=SINGLE),
    Case(
        "booleans",
        lambda a, b: (a & b, a ^ b, ~a, a.sum(), a.any(0), a.all(1), a | b, a.long() + b),
        integers(0, 2, (20, 30), (20, 30), dtype=torch.bool),
        dtypes=SINGLE,
    ),
    Case(
        "float_of_int",
        lambda a, b: (a / b, a.sqrt(), a.float().mean(), a * 0.5),
        integers(1, 90, (20, 30), (20, 30), dtype=torch.int32),
        dtypes=SINGLE,
    ),
]
