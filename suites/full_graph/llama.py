"""Llama's debug model: embedding, blocks with grouped-query attention in a region, output layer, cross entropy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

# Relative, since the suites are shipped as pytest_regional.suites.
from ..models.layers import RMSNorm, SwiGLU, in_region, rotary_table, rotate, weight  # noqa: TID252
from ..models.llama import causal_attention  # noqa: TID252

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model; as they stand, those of the debug model."""

    layers: int = 6
    size: int = 256
    heads: int = 16
    kv_heads: int = 8
    hidden: int = 768
    vocabulary: int = 2048
    batch: int = 2
    length: int = 128

    @property
    def head_size(self) -> int:
        """The size of one head."""
        return self.size // self.heads


DEBUG = Sizes()
#: Two layers of the debug model, and short sequences.
QUICK = Sizes(layers=2, length=16)
#: Two layers of a model that is small in every way; on a GPU, flex attention wants heads of 16 numbers at least.
TINY = Sizes(layers=2, size=32, heads=2, kv_heads=1, hidden=48, vocabulary=64, length=16)


class Block(nn.Module):
    """Attention, whose core is a region unless there is to be none, and a gated feed-forward layer."""

    def __init__(self, sizes: Sizes, attention: Attention, region: str | None = "attention") -> None:
        super().__init__()
        self.sizes, self.attention, self.region = sizes, attention, region
        self.attention_norm, self.feed_forward_norm = RMSNorm(sizes.size), RMSNorm(sizes.size)
        self.qkv = weight((sizes.heads + 2 * sizes.kv_heads) * sizes.head_size, sizes.size)
        self.out = weight(sizes.size, sizes.heads * sizes.head_size)
        self.feed_forward = SwiGLU(sizes.size, sizes.hidden)

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        h = x + self._attend(self.attention_norm(x), cosine, sine)
        return h + self.feed_forward(self.feed_forward_norm(h))

    def _attend(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        sizes, (batch, length, _) = self.sizes, x.shape
        heads = (x @ self.qkv.T).view(batch, length, -1, sizes.head_size).transpose(1, 2)
        query, key, value = heads.split((sizes.heads, sizes.kv_heads, sizes.kv_heads), dim=1)
        query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        with in_region(self.region) if self.region else contextlib.nullcontext():
            attended = self.attention(query, key, value)
        return attended.transpose(1, 2).reshape(batch, length, -1) @ self.out.T


class Llama(nn.Module):
    """Returns the loss of predicting each next token; :meth:`logits` is what inference calls."""

    def __init__(self, sizes: Sizes = DEBUG, attention: Attention = causal_attention) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding = weight(sizes.vocabulary, sizes.size)
        self.blocks = nn.ModuleList(Block(sizes, attention) for _ in range(sizes.layers))
        self.norm, self.head = RMSNorm(sizes.size), weight(sizes.vocabulary, sizes.size)
        cosine, sine = rotary_table(sizes.length, sizes.head_size)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return a score for each token of the vocabulary at each position."""
        h = nn.functional.embedding(tokens, self.embedding)
        for block in self.blocks:
            h = block(h, self.cosine, self.sine)
        return self.norm(h) @ self.head.T

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.logits(tokens).flatten(0, 1), targets.flatten())


def causal(batch, head, query, key):
    return query >= key


def flex(sizes: Sizes, device: object) -> Attention:
    """Return causal ``flex_attention`` for :class:`Llama`."""
    mask = create_block_mask(causal, None, None, sizes.length, sizes.length, device=str(device))

    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return flex_attention(query, key, value, block_mask=mask, enable_gqa=True)

    return attention


def token_batches(regional, sizes: Sizes, steps: int = 5):
    """Return batches of random tokens; what is to be predicted are the same tokens, one further."""
    tokens = [regional.randint(0, sizes.vocabulary, (sizes.batch, sizes.length + 1)) for _ in range(steps)]
    return [(one[:, :-1].contiguous(), one[:, 1:].contiguous()) for one in tokens]
