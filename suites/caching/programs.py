"""Small programs, of matrix products where their ops do not matter: nobody waits for a C++ compiler then."""

from __future__ import annotations

import contextlib

import torch

from pytest_regional import region


def pair(regional, n=8, *, training=False, **options):
    """Return two square matrices."""
    return tuple(regional.randn(n, n, requires_grad=training, **options) for _ in range(2))


def mlp(x, w):
    """Two products, the second in a region."""
    h = x @ w
    with region("mlp"):
        h = h @ w.t()
    return h + x


def annotated(first=None, second=None):
    """Return two products; each argument is None or the keywords of the region that its product stands in."""

    def marked(keywords):
        return contextlib.nullcontext() if keywords is None else region(**keywords)

    def program(x, w):
        with marked(first):
            x = x @ w
        with marked(second):
            return x @ w.t()

    return program


class Model(torch.nn.Module):
    """A linear layer in a region, and a buffer outside."""

    def __init__(self, n=8):
        super().__init__()
        self.linear = torch.nn.Linear(n, n, bias=False)
        self.register_buffer("scale", torch.eye(n))

    def forward(self, x):
        """Apply both."""
        with region("linear"):
            x = self.linear(x)
        return x @ self.scale
