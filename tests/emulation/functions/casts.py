"""Conversions between dtypes, bit casts, eight-bit floats, complex numbers."""

from __future__ import annotations

import torch

from .case import SINGLE, WIDE, Case
from .inputs import PAIR, SQUARE, uniform


def to_everything(a):
    return a.int(), a.long(), a.half(), a.bfloat16(), a.double(), a.float(), a.abs().to(torch.uint8), a.to(torch.int8)


def eight_bit_round_trip(a):
    return a.to(torch.float8_e4m3fn).float(), a.to(torch.float8_e5m2).float()


def eight_bit_scaled(a):
    scale = a.abs().amax() / 448.0
    return (a / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


def eight_bit_arithmetic(a):
    return (a.to(torch.float8_e4m3fn).to(torch.float16) * 2).to(torch.float8_e5m2)


def bit_casts(a):
    return a.view(torch.int32) ^ 1, (a.view(torch.int32) & 0x7FFFFFFF).view(torch.float32)


def mixed(a, b):
    return a.half() + b, a.bfloat16() * b.bfloat16(), a.half().float() + b.double(), (a > 0) * b


def complex_products(a, b):
    return torch.view_as_real(torch.complex(a, b) * torch.complex(b, a)), torch.complex(a, b).abs()


CASES = [
    Case("to_everything", to_everything, uniform((64, 96), low=-90, high=90)),
    Case("eight_bit_round_trip", eight_bit_round_trip, SQUARE, dtypes=("f32", "bf16", "f16")),
    Case("eight_bit_scaled", eight_bit_scaled, SQUARE, dtypes=SINGLE),
    Case("eight_bit_arithmetic", eight_bit_arithmetic, SQUARE, dtypes=SINGLE),
    Case("bit_casts", bit_casts, SQUARE, dtypes=SINGLE),
    Case("mixed_precision", mixed, PAIR, dtypes=SINGLE),
    Case("complex_products", complex_products, PAIR, dtypes=WIDE, backward=True, kernels=False),
    Case(
        "complex_conjugate",
        lambda a: torch.view_as_real((torch.view_as_complex(a).conj() * 2).resolve_conj()),
        lambda: (torch.randn(20, 2),),
        dtypes=WIDE,
        kernels=False,
    ),
]
