"""Functions of one number or two, real and complex."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pytest_regional.fuzz.model.value_range import ValueRange, between, constant, integers
from pytest_regional.fuzz.operators.aten.ranges import (
    Ranges,
    always,
    any_number,
    bounded,
    clamped,
    floats_like,
    monotone,
)
from pytest_regional.fuzz.operators.operator import (
    Operator,
    ProgramValue,
    Wanted,
    also,
    at_least,
    broadcasts,
    exact,
    floating,
    integer,
    no_larger_than,
    nonempty,
    numeric,
    ranked,
    same_dtype,
    signed,
    unkinked_at,
    without_gradient,
)
from pytest_regional.fuzz.operators.schemas import derived


def smooth() -> Iterator[tuple[Operator, ...]]:
    """Yield functions of one number, and of two."""

    def unary(name: str, value_range: Ranges, *conditions: Wanted, **fields: Any) -> tuple[Operator, ...]:
        return derived(name, "pointwise", {"self": also(floating, *conditions)}, value_range, **fields)

    inside = no_larger_than(0.9)
    yield unary("acos", bounded(0, 3.2), inside)
    yield unary("acosh", bounded(0, 8), at_least(1.2))
    yield unary("log10", monotone(math.log10), at_least(0.1))
    yield unary("erfc", bounded(0, 2))
    yield unary("erfinv", bounded(-2, 2), inside)
    yield unary("digamma", bounded(-12, 8), at_least(0.2))
    yield unary("lgamma", bounded(-1, 210), at_least(0.2), no_larger_than(64))
    yield unary("sinc", bounded(-1, 1), no_larger_than(16))
    yield unary("i0", bounded(0, 60), no_larger_than(4))
    yield unary("special_i0e", bounded(0, 1), no_larger_than(4))
    yield unary("special_i1", bounded(-12, 12), no_larger_than(4))
    yield unary("special_i1e", bounded(-1, 1), no_larger_than(4))
    yield unary("special_ndtr", bounded(0, 1), no_larger_than(4))
    yield unary("special_ndtri", bounded(-2, 2), at_least(0.1), inside)
    yield unary("special_log_ndtr", bounded(-16, 0), no_larger_than(4))
    yield unary("special_entr", bounded(-16, 0.4), at_least(0.1), no_larger_than(4))
    yield unary("special_erfcx", bounded(0, 8), at_least(-1), no_larger_than(4))
    yield unary("special_bessel_j0", bounded(-1, 1), no_larger_than(8))
    yield unary("special_bessel_j1", bounded(-1, 1), no_larger_than(8))
    yield unary("polygamma", bounded(-60, 60), at_least(0.5), given={"n": always(1, 0, 2)})
    yield unary("deg2rad", bounded(-16, 16))
    yield unary("rad2deg", bounded(-460, 460), no_larger_than(8))
    yield unary("logit", bounded(-3, 3), at_least(0.1), inside, given={"eps": always(None, 0.05)})
    yield unary("gelu", lambda a, **p: between(-0.2, max(a.value_range.high, 0.0), a.value_range), in_place=True)
    yield unary(
        "softplus",
        lambda a, **p: between(0, max(a.value_range.high, 0.0) + 1, a.value_range),
        no_larger_than(8),
        given={"beta": always(1, 2), "threshold": always(20)},
    )
    yield unary(
        "elu",
        lambda a, **p: between(-2.0, 2 * max(a.value_range.high, 0.0), a.value_range),
        unkinked_at(0.0),
        given={"alpha": always(1, 0.5, 2), "scale": always(1, 2), "input_scale": always(1, 0.5)},
        in_place=True,
    )
    yield unary(
        "celu",
        lambda a, **p: between(-2.0, max(a.value_range.high, 0.0), a.value_range),
        unkinked_at(0.0),
        given={"alpha": always(1.0, 0.5, 2.0)},
    )
    yield unary("selu", lambda a, **p: between(-2.0, 2 * max(a.value_range.high, 0.0), a.value_range), unkinked_at(0.0))
    yield unary("hardshrink", lambda a, **p: replace(a.value_range.join(constant(0)), zeros=False), exact)
    yield unary(
        "softshrink",
        lambda a, **p: between(min(a.value_range.low, 0), max(a.value_range.high, 0), a.value_range),
        unkinked_at(-0.5, -0.25, 0.25, 0.5),
    )
    yield unary(
        "leaky_relu",
        lambda a, **p: between(min(a.value_range.low, 0.0), max(a.value_range.high, 0.0), a.value_range),
        unkinked_at(0.0),
        in_place=True,
    )
    yield unary(
        "hardtanh", lambda a, min_val, max_val: clamped(a, min_val, max_val), unkinked_at(-1, 0, 1, 2), in_place=True
    )
    yield unary(
        "hardswish",
        lambda a: between(-0.4, max(a.value_range.high, 0.0), a.value_range),
        unkinked_at(-3, 3),
        in_place=True,
    )
    yield unary("hardsigmoid", lambda a: between(0, 1, a.value_range), unkinked_at(-3, 3), in_place=True)
    yield unary(
        "glu",
        lambda a, dim: between(-a.value_range.size, a.value_range.size, a.value_range),
        ranked(1),
        lambda v, *b: v.shape[-1] % 2 == 0,
        nonempty,
        given={"dim": always(-1)},
    )
    yield unary("sigmoid", bounded(0, 1), in_place=True)
    yield unary("tanh", monotone(math.tanh), in_place=True)
    yield unary("exp", monotone(math.exp), no_larger_than(4), in_place=True)
    yield unary("sqrt", monotone(math.sqrt), at_least(0.1), in_place=True)
    yield unary("reciprocal", monotone(lambda x: 1 / x), at_least(0.1), in_place=True)
    exactly = also(numeric, exact)
    whole = {"self": exactly}
    yield derived("round.decimals", "pointwise", {"self": also(numeric, exact, _has_unit)}, _rounded_decimals)
    yield derived(
        "frexp.Tensor",
        "pointwise",
        whole,
        lambda a: (ValueRange(-1, 1, exact=True, zeros=a.value_range.zeros), integers(-1100, 1100)),
    )
    yield derived(
        "trunc",
        "pointwise",
        whole,
        lambda a: replace(integers(math.floor(a.value_range.low), math.ceil(a.value_range.high)), zeros=False),
        in_place=True,
    )
    yield derived(
        "ldexp.Tensor",
        "pointwise",
        {"self": numeric, "other": also(integer, broadcasts, no_larger_than(6))},
        lambda a, b: replace(a.value_range.scaled(64).join(a.value_range.scaled(1 / 64)), exact=False, zeros=False),
    )
    yield derived(
        "nextafter",
        "pointwise",
        {"self": also(numeric, signed), "other": also(numeric, signed, same_dtype, broadcasts)},
        lambda a, b: replace(a.value_range.join(b.value_range), unit=None),
    )
    yield derived(
        "copysign.Tensor",
        "pointwise",
        {"self": exactly, "other": also(any_number, signed, broadcasts)},
        lambda a, b: replace(a.value_range.kept(-a.value_range.size, a.value_range.size), zeros=True),
    )
    yield derived(
        "copysign.Scalar",
        "pointwise",
        whole,
        lambda a, number: replace(a.value_range.kept(-a.value_range.size, a.value_range.size), zeros=True),
        given={"other": always(1, -1, -0.0)},
    )
    yield derived(
        "heaviside",
        "pointwise",
        {"self": exactly, "values": also(numeric, same_dtype, broadcasts)},
        lambda a, b: integers(0, 1).join(b.value_range),
    )
    yield derived(
        "hypot",
        "pointwise",
        {"self": floating, "other": floats_like(at_least(0.1))},
        lambda a, b: between(0, a.value_range.size + b.value_range.size, a.value_range, b.value_range),
        in_place=True,
    )
    yield derived(
        "logaddexp2",
        "pointwise",
        {"self": floating, "other": floats_like()},
        lambda a, b: between(
            max(a.value_range.low, b.value_range.low),
            max(a.value_range.high, b.value_range.high) + 1,
            a.value_range,
            b.value_range,
        ),
    )
    for name in ("xlogy.Tensor", "special_xlog1py"):
        yield derived(
            name,
            "pointwise",
            {"self": floating, "other": floats_like(at_least(0.1), no_larger_than(16))},
            lambda a, b: between(-3 * a.value_range.size, 3 * a.value_range.size, a.value_range, b.value_range),
        )
    yield derived(
        "special_zeta",
        "pointwise",
        {
            "self": also(floating, at_least(1.5), no_larger_than(8)),
            "other": floats_like(at_least(0.5), no_larger_than(8)),
        },
        bounded(0, 300),
    )
    yield derived(
        "prelu",
        "pointwise",
        {
            "self": also(floating, unkinked_at(0.0), ranked(2), nonempty),
            "weight": lambda v, a: floating(v) and v.dtype == a.dtype and v.shape == a.shape[1:2],
        },
        lambda a, b: between(
            -max(1, b.value_range.size) * a.value_range.size,
            max(1, b.value_range.size) * a.value_range.size,
            a.value_range,
        ),
    )


def _has_unit(value: ProgramValue, *before: ProgramValue) -> bool:
    return value.value_range.unit is not None and value.value_range.unit >= 1 and value.value_range.ordinary


def _rounded_decimals(a: ProgramValue, decimals: int) -> ValueRange:
    # Tens are represented exactly, tenths only where they are whole.
    return replace(integers(a.value_range.low - 5, a.value_range.high + 5), zeros=False)


def complex_numbers() -> Iterator[Operator]:
    """Yield functions of complex numbers, made of real ones and taken apart again."""
    operands = (floating, also(floating, _complex_part))
    number = "torch.complex({a}, {b})"
    nonzero = also(floating, at_least(0.1))

    def complex_operator(name: str, template: str, value_range: Ranges, first: Wanted = floating) -> Operator:
        return Operator(f"complex_{name}", "pointwise", template, (first, operands[1]), value_range)

    def both(a: ProgramValue, b: ProgramValue) -> ValueRange:
        return a.value_range.join(b.value_range)

    def squared(a: ProgramValue, b: ProgramValue) -> ValueRange:
        reach = 2 * max(a.value_range.size, b.value_range.size) ** 2
        return between(-reach, reach, a.value_range, b.value_range)

    def quotient(a: ProgramValue, b: ProgramValue) -> ValueRange:
        reach = (a.value_range.size + b.value_range.size) / a.value_range.low
        return between(-reach, reach, a.value_range, b.value_range)

    yield complex_operator(
        "abs",
        f"torch.abs({number})",
        lambda a, b: between(0, a.value_range.size + b.value_range.size, a.value_range),
        nonzero,
    )
    yield complex_operator("angle", f"torch.angle({number})", bounded(-3.2, 3.2), nonzero)
    yield complex_operator("parts", f"torch.view_as_real({number})", both)
    yield complex_operator(
        "conjugate",
        f"torch.view_as_real(torch.conj({number}).resolve_conj())",
        lambda a, b: a.value_range.join(replace(b.value_range, low=-b.value_range.high, high=-b.value_range.low)),
    )
    yield complex_operator("product", f"({number} * torch.complex({{b}}, {{a}})).imag", squared)
    yield complex_operator(
        "real_of_conjugate", f"torch.conj({number}).real.clone()", lambda a, b: a.value_range.repeated()
    )
    yield complex_operator("quotient", f"torch.view_as_real({number} / torch.complex({{a}}, {{a}}))", quotient, nonzero)
    yield complex_operator(
        "polar",
        "torch.polar({a}, {b}).real.clone()",
        lambda a, b: between(-a.value_range.size, a.value_range.size, a.value_range),
        also(floating, no_larger_than(32)),
    )
    yield complex_operator("sum", f"torch.sum({number}).real.clone()", lambda a, b: a.value_range.summed(a.count))
    yield complex_operator("scaled", f"(2.0 * {number} + {{a}}).imag.clone()", lambda a, b: b.value_range.scaled(2.0))
    edges = also(numeric, signed, without_gradient)
    yield Operator(
        "complex_angle_of_edges",
        "pointwise",
        f"torch.angle({number})",
        (edges, also(edges, _complex_part)),
        bounded(-3.2, 3.2),
    )
    # On the edge of the plane's cut signs of zeros decide: 0.0 and -0.0 are drawn by "edges".
    yield Operator(
        "complex_angle_of_real",
        "pointwise",
        "torch.angle({a})",
        (also(numeric, signed, without_gradient),),
        bounded(0, 3.2),
    )


def _complex_part(value: ProgramValue, a: ProgramValue) -> bool:
    """Want the imaginary parts of complex numbers whose real parts the first operand is."""
    return value.dtype in ("float32", "float64") and value.dtype == a.dtype and value.shape == a.shape
