"""Layers of the models, written as their users write them; weights are random, seeded by the harness, never trivial."""

from __future__ import annotations

import torch
from torch import nn
from torch.fx.traceback import annotate


def in_region(name: str) -> annotate:
    """Annotate what follows as region ``name``, in PyTorch's own spelling."""
    return annotate({"compile_with_inductor": {"inductor_region": name}})


def weight(*shape: int) -> nn.Parameter:
    """Return a parameter scaled by the square root of its fan-in, so that activations keep their size."""
    return nn.Parameter(torch.randn(*shape) / shape[-1] ** 0.5)


class RMSNorm(nn.Module):
    """Root mean square normalization with a learned scale near one."""

    def __init__(self, size: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.scale = nn.Parameter(1 + 0.1 * torch.randn(size))
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * self.scale


class SwiGLU(nn.Module):
    """The gated feed-forward layer of Llama."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = weight(hidden, size), weight(hidden, size), weight(size, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gated = nn.functional.silu(x @ self.gate.T) * (x @ self.up.T)
        return gated @ self.down.T


def rotary_table(length: int, head_size: int, theta: float = 5e5) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines of shape (length, head_size / 2)."""
    frequencies = theta ** (-torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Apply the rotary embedding to ``x`` of shape (batch, heads, length, head size)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1)
