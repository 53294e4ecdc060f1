"""The programs that both suites of the row ``fixtures`` check."""

from __future__ import annotations

import torch

from pytest_regional import region


def pointwise(x: torch.Tensor) -> torch.Tensor:
    """One region of pointwise ops, an op after it."""
    with region("pointwise"):
        h = torch.sin(x) * 2 + x.abs()
    return h.cos()


def mlp(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Two products with an activation between."""
    with region("mlp"):
        return torch.nn.functional.silu(x @ up) @ down


def twice(x: torch.Tensor) -> torch.Tensor:
    """Two equal regions."""
    for _ in range(2):
        with region("again"):
            x = torch.tanh(x) + 1
        x = x.relu()
    return x
