"""A chain of add and RMSNorm around a custom operator that writes into its ``out`` argument, with a dynamic batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .layers import RMSNorm, in_region

pytestmark = pytest.mark.regional_compile(requires=("custom_ops",))

SIZE = 128


@torch.library.custom_op("pytest_regional_suites::scaled_add_out", mutates_args=("out",))
def scaled_add_out(x: torch.Tensor, y: torch.Tensor, scale: float, out: torch.Tensor) -> None:
    """Write ``x + scale * y`` into ``out``: the calling convention of kernels in inference engines."""
    out.copy_(x + scale * y)


@scaled_add_out.register_fake
def _(x: torch.Tensor, y: torch.Tensor, scale: float, out: torch.Tensor) -> None:
    return None


class AddNormChain(nn.Module):
    """Region ``norm``, the custom operator in eager, region ``tail``."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = RMSNorm(SIZE), RMSNorm(SIZE)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with in_region("norm"):
            residual = x + residual
            h = self.first(residual)
        out = torch.empty_like(h)
        scaled_add_out(h, residual, 0.5, out)
        with in_region("tail"):
            residual = out + residual
            h = self.second(residual)
        return h, residual


@pytest.fixture
def chain(regional):
    return AddNormChain().to(regional.device).requires_grad_(False)


def inputs(regional, batch):
    return regional.randn(batch, SIZE), regional.randn(batch, SIZE)


@pytest.mark.quick
def test_inference_parity(regional, chain):
    regional.assert_parity(chain, *inputs(regional, 16))


@pytest.mark.regional_compile(dynamic=True, requires=("custom_ops", "dynamic_shapes"))
def test_one_compile_serves_every_batch(regional, chain):
    compiled = regional.compile(chain)

    def same_as_eager(batch):
        regional.assert_parity(chain, *inputs(regional, batch), compiled=lambda _: compiled)

    same_as_eager(16)
    with regional.expect(recompiles=0, region_compiles=0), regional.no_compile():
        for batch in (3, 7, 31):
            same_as_eager(batch)


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("custom_ops", "region_ids", "region_counts", "few_partitions"))
def test_the_custom_operator_divides_two_regions(regional, chain):
    record = regional.run(chain, *inputs(regional, 16))

    assert [(r.name, r.partitions) for r in record.regions] == [("norm", 1), ("tail", 1)]
    # Add, then RMSNorm, with the weights as inputs: the two regions are equal up to their names.
    assert record.counters["region_compiles"] == (1 if regional.supports("share_identical") else 2)
