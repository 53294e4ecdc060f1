"""Higher-order operators, custom operators, checkpoints, autograd functions."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint

from .case import SINGLE, Case
from .inputs import SQUARE, normal


@torch.library.custom_op("emulated_functions::sine_twice", mutates_args=())
def sine_twice(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


@sine_twice.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("emulated_functions::halve_", mutates_args=("x",))
def halve_(x: torch.Tensor) -> None:
    x.div_(2)


def custom_in_place(a):
    b = a + 1
    torch.ops.emulated_functions.halve_(b)
    return b.sin()


def condition(a):
    return torch.cond(a.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() - 1, (a,))


def loop(a):
    from torch._higher_order_ops.while_loop import while_loop

    zero = torch.zeros((), dtype=torch.int64, device=a.device)
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2 + 1), (zero, a))[1]


def running_total(a):
    from torch._higher_order_ops.scan import scan

    return scan(lambda carry, x: (carry + x.sin(), carry * 2), torch.zeros_like(a[0]), a)


def mapped(a, b):
    from torch._higher_order_ops.map import map as map_rows

    return map_rows(lambda row, other: row.sin() * other, a, b)


def checkpointed(a, w):
    return checkpoint(lambda x: torch.tanh(x @ w).sin() * 2, a, use_reentrant=False)


@torch.compiler.nested_compile_region
def block(x):
    return x.sin() * 2 + x


def nested_regions(a):
    return block(block(a)).sum(1)


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(context, gradient):
        (x,) = context.saved_tensors
        return gradient * torch.where(x.abs() < 1, 1.0, 0.1)


def assembly(a):
    from torch._higher_order_ops.inline_asm_elementwise import inline_asm_elementwise

    return inline_asm_elementwise(a, asm_str="mul.f32 $0,$1,$1;", constraints="=f,f", dtype=torch.float32)


CASES = [
    Case("custom_operator", lambda a: torch.ops.emulated_functions.sine_twice(a * 2) + 1, SQUARE),
    Case("custom_operator_in_place", custom_in_place, SQUARE),
    Case("condition", condition, SQUARE, terms=6144),
    Case("while_loop", loop, SQUARE),
    Case("scan_operator", running_total, normal((6, 9)), dtypes=("f32", "f64"), terms=6),
    Case("map_operator", mapped, normal((5, 9), (9,)), dtypes=("f32", "f64")),
    Case("checkpoint", checkpointed, normal((64, 96), (96, 96)), backward=True, terms=96),
    Case("nested_regions", nested_regions, SQUARE, backward=True, terms=96),
    Case("autograd_function", lambda a: _Clipped.apply(a * 2).sin(), SQUARE, backward=True),
    Case("inline_assembly", assembly, SQUARE, reference=lambda a: a * a, dtypes=SINGLE, since=(2, 13)),
]
