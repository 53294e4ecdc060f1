"""Inputs changed in place, outputs that alias inputs, ``out=``, kernels over lists of tensors."""

from __future__ import annotations

import torch

from .case import SINGLE, Case, Defect
from .inputs import PAIR, SQUARE, Inputs, joined, normal

COMBINED = {"combo_kernels": True}
COMBINED_FLAT = {"combo_kernels": True, "combo_kernel_per_subkernel_blocks": False}


def changed_in_place(a, b):
    a.add_(b).mul_(2)
    return a.sum(1)


def changed_through_a_view(a, b):
    a[:, ::2].mul_(b[:, ::2])
    a.t()[3].zero_()
    return b + a


def copied(a, b):
    a.copy_(b.sin())
    return a + 1


def aliases(a):
    v = a.t()
    return v, v + 1, a[1:3], a


def out_argument(a, b):
    out = torch.empty_like(a)
    torch.add(a.sin(), b, out=out)
    torch.mul(out, 2, out=out)
    return out


def out_argument_of_caller(a, b, out):
    torch.mul(a, b, out=out)
    return out.sum()


def swapped(a, b):
    old = a.clone()
    a.copy_(b)
    b.copy_(old)


def adam(*tensors):
    parameters, gradients, first, second = (list(tensors[i : i + 4]) for i in range(0, 16, 4))
    first = torch._foreach_mul(first, 0.9)
    torch._foreach_add_(first, gradients, alpha=0.1)
    second = torch._foreach_mul(second, 0.99)
    torch._foreach_addcmul_(second, gradients, gradients, 0.01)
    root = torch._foreach_add(torch._foreach_sqrt(second), 1e-4)
    return torch._foreach_addcdiv(parameters, first, root, value=-0.01)


def adam_in_place(*tensors):
    parameters, gradients, first, second = (list(tensors[i : i + 4]) for i in range(0, 16, 4))
    torch._foreach_lerp_(first, gradients, 0.1)
    torch._foreach_mul_(second, 0.99)
    torch._foreach_addcmul_(second, gradients, gradients, 0.01)
    root = torch._foreach_sqrt(second)
    torch._foreach_add_(root, 1e-4)
    torch._foreach_addcdiv_(parameters, first, root, -0.01)


def state() -> tuple[torch.Tensor, ...]:
    tensors = [torch.randn(7, 5 + i % 4) for i in range(16)]
    return tuple(tensors[:12] + [tensor.abs() + 0.1 for tensor in tensors[12:]])


def three(a, b, c):
    return a.sin() + 1, b.cos() * 2, c.sum(1)


def buffers_used_again(a, b):
    x = a @ b.t()
    y = (x.sin() @ a).relu()
    z = (y @ b.t()).cos()
    return (z @ a).sum(0) + 1


def quiet() -> tuple[torch.Tensor, ...]:
    return torch.randn(64, 64) / 8, torch.randn(64, 64) / 8


THREE: Inputs = normal((30, 40), (50, 7), (16, 64))

CASES = [
    Case("changed_in_place", changed_in_place, PAIR, terms=96),
    Case("changed_through_a_view", changed_through_a_view, PAIR),
    Case("copied", copied, PAIR),
    Case("swapped", swapped, PAIR, defect=Defect("swapped_inputs", mended=(2, 15))),
    Case("aliases", aliases, SQUARE),
    Case("out_argument", out_argument, PAIR),
    Case("out_argument_of_caller", out_argument_of_caller, joined(PAIR, SQUARE), dtypes=SINGLE, terms=6144),
    Case("buffers_used_again", buffers_used_again, quiet, backward=True, terms=64),
    Case("foreach_adam", adam, state),
    Case("foreach_in_place", adam_in_place, state),
    Case("combined_kernels", three, THREE, configs=COMBINED, terms=64),
    Case("combined_kernels_flat", three, THREE, configs=COMBINED_FLAT, terms=64),
]
