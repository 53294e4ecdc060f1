"""Mixture of experts: sort tokens by expert, dense work per expert in a region, weighted sum back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .layers import in_region, weight

pytestmark = pytest.mark.regional_compile

SIZE, HIDDEN, EXPERTS, TOP, TOKENS = 256, 128, 8, 3, 128


class MixtureOfExperts(nn.Module):
    """Top-3 routing over 8 experts without dropping a token.

    Every expert sees as many rows as there are, masked to its own: the dense form that a graph without data-dependent
    shapes needs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.router = weight(EXPERTS, SIZE)
        self.up, self.down = weight(EXPERTS, HIDDEN, SIZE), weight(EXPERTS, SIZE, HIDDEN)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores, experts = (tokens @ self.router.T).softmax(-1).topk(TOP, dim=-1)
        order = experts.flatten().argsort(stable=True)
        source = order // TOP
        rows, owners = tokens[source], experts.flatten()[order]
        with in_region("experts"):
            hidden = nn.functional.silu(torch.einsum("td,ehd->eth", rows, self.up))
            mine = owners[None, :] == torch.arange(EXPERTS, device=tokens.device)[:, None]
            computed = (torch.einsum("eth,edh->etd", hidden, self.down) * mine[..., None]).sum(0)
        weighted = computed * scores.flatten()[order][:, None]
        return torch.zeros_like(tokens).index_add(0, source, weighted)


@pytest.fixture
def experts(regional):
    return MixtureOfExperts().to(regional.device)


@pytest.mark.regional_compile(requires=("backward",))
def test_training_parity(regional, experts):
    regional.assert_parity(experts, regional.randn(TOKENS, SIZE, requires_grad=True))


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("regions", "region_counts", "few_partitions"))
def test_dispatch_and_combine_stay_eager(regional, experts):
    record = regional.run(experts, regional.randn(TOKENS, SIZE, requires_grad=True))

    assert [(r.name, r.graph, r.partitions) for r in record.regions] == [
        ("experts", "forward", 1),
        ("experts", "backward", 1),
    ]
    ops = record.region("experts", "forward").ops
    # Two einsums, each a batched product; sorting and the weighted sum are outside.
    assert sum("bmm" in op for op in ops) == 2
    assert not any("sort" in op or "index_add" in op or "topk" in op for op in ops)
