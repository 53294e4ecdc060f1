"""Flex attention in a region together with other operators."""

from __future__ import annotations

import pytest
from torch.nn.attention.flex_attention import flex_attention

from .annotations import in_region

pytestmark = pytest.mark.regional_compile(requires=("flex_attention",))


def attention(x, w):
    with in_region("attention"):
        # Pointwise in front and nothing behind: Inductor's CPU template takes neither products in front (2.13, 2.15,
        # docs/findings/flex_attention_of_products_cpu.py) nor pointwise ops behind.
        q, k, v = x.sin(), x.cos(), x * 2
        h = flex_attention(q, k, v, score_mod=lambda score, b, h, q_index, k_index: score + (q_index - k_index))
    return h @ w


def operands(regional, **options):
    return regional.randn(1, 2, 16, 16, **options), regional.randn(16, 16, **options) / 4


def test_inference(regional):
    regional.assert_parity(attention, *operands(regional))


@pytest.mark.regional_compile(requires=("flex_attention", "regions", "region_counts", "few_partitions"))
def test_it_is_in_the_region_that_it_is_annotated_with(regional):
    record = regional.run(attention, *operands(regional))

    assert record.region("attention").partitions == 1
    assert any("flex_attention" in op for op in record.region("attention").ops)


@pytest.mark.regional_compile(requires=("flex_attention", "flex_attention_backward"))
def test_training(regional):
    regional.assert_parity(attention, *operands(regional, requires_grad=True))
