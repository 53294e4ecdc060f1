"""Programs whose generated code is looked at; those of matrix products alone need no C++ compiler."""

from __future__ import annotations

import torch

from tests.harness.programs import in_region


def train(a, b):
    """Two products, and a kernel that needs both."""
    c, d = a + 1, a @ b
    return torch.nn.functional.silu(d) * c + (d @ b).sum()


def chain(a, b):
    """A kernel, a product, a kernel: nothing can be fused."""
    return ((a + 1) @ b).sin() * 2


def products(a, b):
    """Four products, each of the one before: two buffers are enough."""
    return a @ b @ b @ b @ b


def held(a, b):
    """Three products, and one merged with an addition: the result of the first is needed to the end."""
    first = a @ b
    return first + first @ b @ b @ b


def branch(p, x):
    """A product and a kernel in both branches, and a kernel behind them."""
    return torch.cond(p, lambda x: (x @ x).sin(), lambda x: x.cos() @ x, (x,)) + 1


def copies(a, b):
    """A transposed copy, and a sort that Inductor leaves to ATen."""
    return a.t().contiguous(), b.sort().values


def two_regions(x, w):
    """A product in each of two regions, another operator between."""
    with in_region("first"):
        h = x @ w
    h = torch.tanh(h)
    with in_region("second"):
        h = torch.addmm(h, h, w)
    return h.cos()


def collectives(x):
    """A gather in flight while a product runs."""
    import torch.distributed._functional_collectives as functional

    gathered = functional.all_gather_tensor(x, 0, "0")
    product = x @ x
    return functional.wait_tensor(gathered), product @ product
