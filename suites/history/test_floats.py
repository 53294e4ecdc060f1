"""Floats at their edges: large, small, negative zero, and the last digits."""

from __future__ import annotations

import pytest
import torch
import torch._inductor.config
import torch.nn.functional as F

from .checks import parity
from .known_bugs import BugClass, assert_as_listed

pytestmark = pytest.mark.regional_compile
bugs = BugClass("float")


@bugs(197089, layer="inductor", notices="value")
def deviation_of_large_numbers(regional):
    """The standard deviation of numbers of 1e30 is infinite: squares are summed in float32."""

    def program(x):
        return x.std()

    parity(regional, program, regional.randn(64) * 1e30)


@bugs(189799, layer="inductor", notices="value")
def negative_zero(regional):
    """``elu`` of a negative zero, and a negative zero plus zero: the sign is another than in eager."""

    def program(x):
        return 1 / (x + torch.zeros_like(x)), 1 / F.elu(x)

    parity(regional, program, regional.tensor([-0.0, 0.0, 1.0]))


@bugs(layer="inductor", notices="value")
def erf_near_zero(regional):
    """``erf`` is 5e-7 off everywhere: near zero no digit is right."""

    def program(x):
        return torch.erf(x)

    parity(regional, program, torch.linspace(1e-8, 1e-6, 64, device=regional.device))


@bugs(layer="inductor", notices="value")
def floor_of_quotient(regional):
    """``x // 0.1`` is the floor of a rounded quotient: 10 for 1, where eager, as Python, says 9."""

    def program(x):
        return torch.div(x, 0.1, rounding_mode="floor")

    parity(regional, program, torch.arange(8.0, device=regional.device))


@bugs(layer="inductor", notices="value")
def remainder_of_large_quotient(regional):
    """``x % 0.7`` of a large x on CPU is ``x - floor(x / 0.7) * 0.7``, rounded: -8 for 1e8."""

    def program(x):
        return torch.remainder(x * 1e8, 0.7)

    parity(regional, program, torch.arange(32.0, device=regional.device))


@bugs(185337, layer="inductor", notices="value")
def casts_down_and_up(regional):
    """float32 to float16 and back is left out."""

    def program(x):
        return x.half().float() == x, x.sum().half().float()

    parity(regional, program, regional.randn(33, 17))


@bugs(195214, layer="inductor", notices="value", device="cuda-emulated", requires=("inductor_code",))
def product_compared_unrounded(regional):
    """A bfloat16 product is compared, in one kernel with it, before it was rounded."""

    def program(x, y):
        return x * 1.1 == y

    x = regional.randn(64, dtype=torch.bfloat16)
    parity(regional, program, x, x * 1.1)


@bugs(layer="inductor", torch="<2.15", notices="value", device="cuda-emulated", requires=("inductor_code",))
def mix_order_float64(regional):
    """Rows and columns of a float64 matrix are summed in one kernel, and one of the sums in float32."""

    def program(x):
        return x.sum(0), x.sum(1)

    wanted = {"triton.mix_order_reduction": True, "triton.mix_order_reduction_non_strict_mode": True}
    with torch._inductor.config.patch(wanted):
        parity(regional, program, regional.randn(4096, 64, dtype=torch.float64))


@bugs(layer="inductor", torch="<2.15", notices="value", device="cuda-emulated", requires=("inductor_code",))
def signbit_of_float64(regional):
    """Triton code asks for the sign bit of a float64 whether it is below zero, which a negative zero is not."""

    def program(x):
        return torch.signbit(x)

    parity(regional, program, regional.tensor([-0.0, 1.0], dtype=torch.float64))


@pytest.mark.parametrize("bug", bugs.cases())
def test_known_bug(regional, bug, record_property):
    assert_as_listed(bug, regional, record_property)
