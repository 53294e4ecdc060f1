"""Flex attention in a region together with other operators."""

from __future__ import annotations

import pytest
from torch.nn.attention.flex_attention import flex_attention

from .annotations import in_region

pytestmark = pytest.mark.regional_compile(requires=("flex_attention",))


def attention(x, w):
    with in_region("attention"):
        # Three values: torch 2.11 refuses one buffer in all three places.
        q, k, v = (t.unflatten(-1, (2, 16)).transpose(1, 2) for t in (x @ w, x @ w.t(), x))
        h = flex_attention(q, k, v, score_mod=lambda score, b, h, q_index, k_index: score + (q_index - k_index))
        h = h.transpose(1, 2).flatten(2)
    return h @ w


def operands(regional, **options):
    return regional.randn(1, 16, 32, **options), regional.randn(32, 32, **options) / 6


def test_inference(regional):
    regional.assert_parity(attention, *operands(regional))
    record = regional.run(attention, *operands(regional))

    assert record.region("attention").partitions == 1
    assert any("flex_attention" in op for op in record.region("attention").ops)


@pytest.mark.regional_compile(requires=("flex_attention", "flex_attention_backward"))
def test_training(regional):
    regional.assert_parity(attention, *operands(regional, requires_grad=True))
