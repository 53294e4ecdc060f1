"""A data-parallel program with sharded weights: every layer gathers its weight, the backward scatters gradients."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from ..models.layers import weight  # noqa: TID252

LAYERS, WORLD, SIZE, ROWS = 3, 8, 32, 8
C10D = torch.ops._c10d_functional
GATHER = "_c10d_functional.all_gather_into_tensor"
SCATTER = "_c10d_functional.reduce_scatter_tensor"
WAIT = "_c10d_functional.wait_tensor"


class Gather(torch.autograd.Function):
    """Gather a weight from its shards; its gradient is averaged over the ranks and scattered."""

    @staticmethod
    def forward(context, shard):
        group = dist.group.WORLD
        return C10D.wait_tensor(C10D.all_gather_into_tensor(shard, group.size(), group.group_name))

    @staticmethod
    def backward(context, gradient):
        group = dist.group.WORLD
        scattered = C10D.reduce_scatter_tensor(gradient.contiguous(), "avg", group.size(), group.group_name)
        return C10D.wait_tensor(scattered)


class Sharded(nn.Module):
    """Three layers; each rank holds its share of every weight and sees its own rows. Returns the loss."""

    def __init__(self, world: int = WORLD) -> None:
        super().__init__()
        self.shards = nn.ParameterList(weight(SIZE, SIZE)[: SIZE // world].detach().clone() for _ in range(LAYERS))

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        for shard in self.shards:
            x = nn.functional.silu(x @ Gather.apply(shard))
        return nn.functional.mse_loss(x, targets)


def batches(regional, steps: int = 5):
    """Return rows and targets of one rank."""
    return [(regional.randn(ROWS, SIZE), regional.randn(ROWS, SIZE)) for _ in range(steps)]
