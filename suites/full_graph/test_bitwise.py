"""What a captured graph without a compiler shares with eager to the last bit, and the few ops of which it does not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.regional_compile(requires=("full_graph", "backward"), expects_regions=False)

F = nn.functional

SAME = {
    "layer_norm": lambda w, x: F.layer_norm(x * w, (8,)),
    "rms_norm": lambda w, x: F.rms_norm(x * w, (8,)),
    "attention": lambda w, x: F.scaled_dot_product_attention(w[None], x[None], (w * x)[None], is_causal=True),
    "dropout": lambda w, x: F.dropout(w * x, 0.3),
    "drawn": lambda w, x: w * torch.rand_like(x),
    "cross_entropy": lambda w, x: F.cross_entropy((w * x).flatten(0, 1), torch.arange(24, device=x.device) % 8),
    "gelu": lambda w, x: F.gelu(w + x),
    "conv": lambda w, x: F.conv1d(x, w[:, :, :3]),
    "einsum": lambda w, x: torch.einsum("abc,adc->abd", w, x),
    # Each row once: a GPU adds what goes to one place in any order.
    "scatter_add": lambda w, x: torch.ones_like(x).scatter_add(1, torch.ones_like(x).cumsum(1).long() % 6, w * x),
    "nearest": lambda w, x: F.interpolate(w * x, scale_factor=2),
}

# Operators that PyTorch takes apart while it traces, whether or not decompositions are asked for; the formula for the
# gradient of prod looks for zeros in eager and cannot in a graph. Seen on 2.11, 2.13 and 2.15.
TAKEN_APART = {
    "prod": lambda w, x: (w * x).prod(-1),
    "bilinear": lambda w, x: F.interpolate((w * x)[None], scale_factor=2, mode="bilinear"),
    "bicubic": lambda w, x: F.interpolate((w * x)[None], scale_factor=2, mode="bicubic"),
}


class Program(nn.Module):
    """One operation on a parameter and an input, and a loss that weighs each element differently."""

    def __init__(self, operation) -> None:
        super().__init__()
        self.w, self.operation = nn.Parameter(torch.randn(4, 6, 8)), operation

    def forward(self, x):
        output = self.operation(self.w, x)
        return (output * torch.arange(1, output.numel() + 1, device=x.device).reshape(output.shape).sin()).sum()


def train(regional, operation, level):
    model, steps = Program(operation).to(regional.device), [regional.randn(4, 6, 8) for _ in range(2)]
    compiled = lambda model: regional.pipeline.ending_with("aot_eager").compile(model, steps[:1])  # noqa: E731
    return regional.assert_training_parity(model, steps, compiled=compiled, level=level)


@pytest.mark.quick
@pytest.mark.parametrize("name", SAME)
def test_every_bit_is_that_of_eager(regional, name):
    train(regional, SAME[name], "bitwise")


@pytest.mark.parametrize("name", TAKEN_APART)
def test_what_is_taken_apart_is_close(regional, name):
    train(regional, TAKEN_APART[name], "close")


@pytest.mark.parametrize("name", TAKEN_APART)
def test_and_not_equal(regional, name):
    """When this fails the list above is too long: move the name up."""
    with pytest.raises(AssertionError, match="at level 'bitwise'"):
        train(regional, TAKEN_APART[name], "bitwise")
