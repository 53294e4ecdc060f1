"""Rewrites of patterns: what they match and should not, and what they drop. Most are optional settings."""

from __future__ import annotations

import pytest
import torch
import torch._inductor.config
import torch.nn.functional as F

from .checks import parity
from .known_bugs import BugClass, assert_as_listed

pytestmark = pytest.mark.regional_compile
bugs = BugClass("rewrite")


@bugs(196577, layer="inductor", torch="<2.15", notices="value")
def decomposed_product_without_factors(regional):
    """``decompose_mm_pass`` drops alpha and beta of addmm."""

    def program(bias, x, w):
        return torch.addmm(bias, x, w, alpha=2.0, beta=0.5)

    wanted = {"post_grad_fusion_options": {"decompose_mm_pass": {}}, "decompose_mem_bound_mm": True}
    with torch._inductor.config.patch(wanted):
        parity(regional, program, regional.randn(1, 16), regional.randn(1, 64), regional.randn(64, 16))


@bugs(196468, layer="inductor", torch="<2.15", notices="value")
def softmax_over_another_dimension(regional):
    """What looks like attention is made attention, whatever the dimension of its softmax."""

    def program(q, k, v):
        return (q @ k.transpose(-2, -1)).div(4.0).softmax(dim=-2) @ v

    parity(regional, program, *(regional.randn(2, 4, 8, 8) for _ in range(3)))


class ConvolutionByKeywords(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)

    def forward(self, x):
        return self.norm(F.conv2d(x, weight=self.conv.weight, bias=self.conv.bias, stride=2))


@bugs(196165, layer="inductor", notices="exception", in_region=False)
def convolution_by_keywords(regional):
    """``efficient_conv_bn_eval`` does not take a convolution whose arguments are keywords."""
    with torch._inductor.config.patch(efficient_conv_bn_eval_fx_passes=True):
        regional.assert_parity(ConvolutionByKeywords().eval().to(regional.device), regional.randn(1, 3, 8, 8))


@pytest.mark.parametrize("bug", bugs.cases())
def test_known_bug(regional, bug, record_property):
    assert_as_listed(bug, regional, record_property)
