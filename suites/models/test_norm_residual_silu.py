"""The tail of a block: LayerNorm, residual and SiLU fused in one region."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .layers import in_region, weight

pytestmark = pytest.mark.regional_compile

ROWS, SIZE = 64, 96


class Tail(nn.Module):
    """A projection in eager, then normalization, residual and activation as region ``tail``."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = weight(SIZE, SIZE)
        self.norm = nn.LayerNorm(SIZE)
        nn.init.normal_(self.norm.weight, 1.0, 0.1)
        nn.init.normal_(self.norm.bias, 0.0, 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x @ self.projection.T
        with in_region("tail"):
            return nn.functional.silu(self.norm(h) + x)


@pytest.fixture
def tail(regional):
    return Tail().to(regional.device)


@pytest.mark.regional_compile(requires=("backward",))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_training_parity(regional, tail, dtype):
    regional.assert_parity(tail.to(dtype), regional.randn(ROWS, SIZE, dtype=dtype, requires_grad=True))


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("regions", "region_counts"))
def test_the_tail_is_fused_into_one_kernel(regional, tail):
    record = regional.run(tail, regional.randn(ROWS, SIZE, requires_grad=True))

    assert [(r.graph, r.partitions) for r in record.regions] == [("forward", 1), ("backward", 1)]
    # The projection stays eager: no matrix product in the code that Inductor generated.
    assert "extern_kernels.mm" not in record.code
    assert any("native_layer_norm" in op for op in record.region("tail", "forward").ops)
