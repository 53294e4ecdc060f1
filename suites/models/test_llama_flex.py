"""The Llama block with ``flex_attention`` and a causal block mask in the region."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from .llama import BATCH, LENGTH, SIZE, LlamaBlock

pytestmark = pytest.mark.regional_compile(requires=("flex_attention",))


def causal(batch, head, query, key):
    return query >= key


@pytest.fixture
def block(regional):
    mask = create_block_mask(causal, None, None, LENGTH, LENGTH, device=str(regional.device))

    def attention(query, key, value):
        return flex_attention(query, key, value, block_mask=mask, enable_gqa=True)

    return LlamaBlock(attention).to(regional.device)


@pytest.mark.regional_known_failure(
    "inductor",
    reason="wrong values on CPU when flex attention is compiled with the rotary embedding before it: "
    "docs/findings/flex_attention_whole_graph_cpu.py",
    torch=">=2.11",
)
def test_inference_parity(regional, block):
    with torch.no_grad():
        regional.assert_parity(block, regional.randn(BATCH, LENGTH, SIZE))


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("flex_attention", "regions", "region_counts"))
def test_flex_attention_is_the_region(regional, block):
    with torch.no_grad():
        record = regional.run(block, regional.randn(BATCH, LENGTH, SIZE))

    assert [(r.name, r.graph, r.partitions) for r in record.regions] == [("attention", "inference", 1)]
    assert any("flex_attention" in op for op in record.region("attention").ops)
    assert record.counters["region_compiles"] == 1


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("flex_attention", "flex_attention_backward"))
def test_training_parity(regional, block):
    regional.assert_parity(block, regional.randn(BATCH, LENGTH, SIZE, requires_grad=True))
