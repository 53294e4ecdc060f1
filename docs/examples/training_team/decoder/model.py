"""The model. Annotations are PyTorch's own: the model needs no package of tests."""

from __future__ import annotations

import torch
from torch import nn
from torch.fx.traceback import annotate
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def _compiled(name: str) -> annotate:
    return annotate({"compile_with_inductor": {"inductor_region": name}})


class Layer(nn.Module):
    """Causal attention and a gated feed-forward layer, each a region; shapes ``(batch, length, size)``."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.feed_forward_norm = nn.RMSNorm(size), nn.RMSNorm(size)
        self.qkv, self.out = nn.Linear(size, 3 * size, bias=False), nn.Linear(size, size, bias=False)
        self.gate, self.up = nn.Linear(size, 2 * size, bias=False), nn.Linear(size, 2 * size, bias=False)
        self.down = nn.Linear(2 * size, size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the hidden states after this layer."""
        batch, length, size = x.shape
        q, k, v = self.qkv(self.attention_norm(x)).chunk(3, dim=-1)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        with _compiled("attention"):
            scores = (q @ k.transpose(-1, -2)) / (size // self.heads) ** 0.5
            future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            mixed = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, size))
        h = self.feed_forward_norm(x)
        gate, up = self.gate(h), self.up(h)
        with _compiled("feed_forward"):
            h = functional.silu(gate) * up
        return x + self.down(h)


class Decoder(nn.Module):
    """Tokens to the loss of predicting the next one; ``recompute`` keeps no activations of layers for the backward."""

    def __init__(
        self, words: int = 64, size: int = 32, heads: int = 4, layers: int = 4, recompute: bool = False
    ) -> None:
        super().__init__()
        self.recompute = recompute
        self.words = nn.Embedding(words, size)
        self.layers = nn.ModuleList(Layer(size, heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(size), nn.Linear(size, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of ``tokens``, shape ``(batch, length)``."""
        x = self.words(tokens[:, :-1])
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), tokens[:, 1:].flatten())
