"""One Llama block: RMSNorm, fused QKV, rotary embedding, grouped-query causal attention in a region, SwiGLU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from .layers import RMSNorm, SwiGLU, in_region, rotary_table, rotate, weight

SIZE, HEADS, KV_HEADS, HEAD_SIZE, HIDDEN, BATCH, LENGTH = 256, 16, 8, 16, 768, 2, 128

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def causal_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Softmax attention with a causal mask, keys and values repeated for their group of query heads."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ value


class LlamaBlock(nn.Module):
    """A block whose attention (and nothing else) is the region ``attention``."""

    def __init__(self, attention: Attention = causal_attention) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = RMSNorm(SIZE), RMSNorm(SIZE)
        self.qkv = weight((HEADS + 2 * KV_HEADS) * HEAD_SIZE, SIZE)
        self.out = weight(SIZE, HEADS * HEAD_SIZE)
        self.feed_forward = SwiGLU(SIZE, HIDDEN)
        self.attention = attention
        cosine, sine = rotary_table(LENGTH, HEAD_SIZE)
        self.register_buffer("cosine", cosine)
        self.register_buffer("sine", sine)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x + self._attend(self.attention_norm(x))
        return h + self.feed_forward(self.feed_forward_norm(h))

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        heads = (x @ self.qkv.T).view(batch, length, -1, HEAD_SIZE).transpose(1, 2)
        query, key, value = heads.split((HEADS, KV_HEADS, KV_HEADS), dim=1)
        query, key = rotate(query, self.cosine, self.sine), rotate(key, self.cosine, self.sine)
        with in_region("attention"):
            attended = self.attention(query, key, value)
        return attended.transpose(1, 2).reshape(batch, length, -1) @ self.out.T
