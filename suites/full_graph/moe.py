"""A transformer block with a mixture of experts, whose work is the region ``experts``, and a head on top of it."""

from __future__ import annotations

import torch
from torch import nn

from ..models.layers import RMSNorm, in_region, rotary_table, weight  # noqa: TID252
from ..models.llama import causal_attention  # noqa: TID252
from .llama import Block, Sizes

EXPERTS, TOP = 4, 2


class Experts(nn.Module):
    """Top-2 routing over 4 experts without dropping a token; every expert sees all rows, masked to its own."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.router = weight(EXPERTS, size)
        self.up, self.down = weight(EXPERTS, hidden, size), weight(EXPERTS, size, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, -2)
        scores, experts = (tokens @ self.router.T).softmax(-1).topk(TOP, dim=-1)
        order = experts.flatten().argsort(stable=True)
        source = order // TOP
        rows, owners = tokens[source], experts.flatten()[order]
        with in_region("experts"):
            hidden = nn.functional.silu(torch.einsum("td,ehd->eth", rows, self.up))
            mine = owners[None, :] == torch.arange(EXPERTS, device=tokens.device)[:, None]
            computed = (torch.einsum("eth,edh->etd", hidden, self.down) * mine[..., None]).sum(0)
        weighted = computed * scores.flatten()[order][:, None]
        return torch.zeros_like(tokens).index_add(0, source, weighted).view_as(x)


class MixtureBlock(nn.Module):
    """A Llama block with experts in the place of the feed-forward layer; returns the loss against targets."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.block = Block(sizes, causal_attention, region=None)
        self.block.feed_forward = Experts(sizes.size, sizes.hidden)
        self.norm, self.head = RMSNorm(sizes.size), weight(sizes.vocabulary, sizes.size)
        cosine, sine = rotary_table(sizes.length, sizes.head_size)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.block(x, self.cosine, self.sine))
        return nn.functional.cross_entropy((h @ self.head.T).flatten(0, 1), targets.flatten())


def batches(regional, sizes: Sizes, steps: int = 5):
    """Return random hidden states, and classes to predict from them."""
    shape = sizes.batch, sizes.length
    return [(regional.randn(*shape, sizes.size), regional.randint(0, sizes.vocabulary, shape)) for _ in range(steps)]
