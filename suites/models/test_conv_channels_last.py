"""A convolution block in channels-last whose normalization and activation are a region."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .layers import in_region

pytestmark = pytest.mark.regional_compile(requires=("channels_last",))

BATCH, CHANNELS, SIDE = 2, 8, 12


class ConvolutionBlock(nn.Module):
    """Convolution in eager; batch norm, activation and residual as region ``tail``."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.norm = nn.BatchNorm2d(CHANNELS)
        nn.init.normal_(self.norm.weight, 1.0, 0.1)
        nn.init.normal_(self.norm.bias, 0.0, 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.convolution(x)
        with in_region("tail"):
            return nn.functional.relu(self.norm(h)) + x


@pytest.fixture
def block(regional):
    return ConvolutionBlock().to(regional.device, memory_format=torch.channels_last)


def images(regional, **options):
    x = regional.randn(BATCH, CHANNELS, SIDE, SIDE).to(memory_format=torch.channels_last)
    return x.requires_grad_(**options) if options else x


@pytest.mark.regional_compile(requires=("channels_last", "backward"))
def test_training_parity_with_running_statistics(regional, block):
    # Parity compares strides of outputs and gradients, and the buffers that batch norm updates.
    regional.assert_parity(block, images(regional, requires_grad=True))


def test_inference_parity(regional, block):
    block.eval().requires_grad_(False)
    regional.assert_parity(block, images(regional))


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("channels_last", "regions", "region_counts", "few_partitions", "backward"))
def test_the_output_stays_channels_last(regional, block):
    record = regional.run(block, images(regional, requires_grad=True))

    assert record.output.is_contiguous(memory_format=torch.channels_last)
    assert [(r.name, r.graph, r.partitions) for r in record.regions] == [
        ("tail", "forward", 1),
        ("tail", "backward", 1),
    ]
