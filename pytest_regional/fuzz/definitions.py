"""Functions, custom ops and classes that programs use, as source: executed once a process, printed where needed."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

#: Source by name. Each defines that name with nothing but ``torch``, ``math``, ``annotate`` and other definitions.
DEFINITIONS: dict[str, str] = {
    "scale": """\
@torch.library.custom_op("regional_fuzz::scale", mutates_args=())
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return (x * factor).contiguous()


@scale.register_fake
def scale_fake(x, factor):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def scale_setup(ctx, inputs, output):
    ctx.factor = inputs[1]


def scale_backward(ctx, gradient):
    return gradient * ctx.factor, None


scale.register_autograd(scale_backward, setup_context=scale_setup)
""",
    "sum_and_difference": """\
@torch.library.custom_op("regional_fuzz::sum_and_difference", mutates_args=())
def sum_and_difference(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (x + y).contiguous(), (x - y).contiguous()


@sum_and_difference.register_fake
def sum_and_difference_fake(x, y):
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    return result, torch.empty_like(result)


def sum_and_difference_backward(ctx, first, second):
    return first + second, first - second


sum_and_difference.register_autograd(sum_and_difference_backward)
""",
    "accumulate": """\
@torch.library.custom_op("regional_fuzz::accumulate", mutates_args=("target",))
def accumulate(target: torch.Tensor, other: torch.Tensor) -> None:
    target.add_(other)


@accumulate.register_fake
def accumulate_fake(target, other):
    return None
""",
    "scale_in_place": """\
@torch.library.custom_op("regional_fuzz::scale_in_place", mutates_args=("target",))
def scale_in_place(target: torch.Tensor, factor: float) -> torch.Tensor:
    before = target.clone(memory_format=torch.contiguous_format)
    target.mul_(factor)
    return before


@scale_in_place.register_fake
def scale_in_place_fake(target, factor):
    return torch.empty_like(target, memory_format=torch.contiguous_format)
""",
    "DoubledGradient": """\
class DoubledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * gradient * x.cos()
""",
    "ScaledProduct": """\
class ScaledProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y, factor):
        ctx.save_for_backward(x, y)
        ctx.factor = factor
        return x * y * factor

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return gradient * y * ctx.factor, gradient * x * ctx.factor, None
""",
    "StraightThrough": """\
class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient
""",
    "repeated": """\
def repeated(block, count, x):
    def more(i, x):
        return i < count

    def again(i, x):
        return i + 1, block(x)

    start = torch.zeros((), dtype=torch.int64, device=x.device)
    return torch._higher_order_ops.while_loop(more, again, (start, x))[1]
""",
}


def defined(names: Iterable[str]) -> dict[str, Any]:
    """Return what every program can use, and the definitions called ``names``."""
    return {**_common(), **{name: _definition(name) for name in names}}


@functools.cache
def _common() -> dict[str, Any]:
    import math

    import torch
    from torch.fx.traceback import annotate

    return {"torch": torch, "math": math, "annotate": annotate}


@functools.cache
def _definition(name: str) -> Any:
    scope = _common().copy()
    # This module's __future__ imports would make annotations strings, which a script's are not.
    exec(compile(DEFINITIONS[name], f"<definition of {name}>", "exec", dont_inherit=True), scope)
    return scope[name]
