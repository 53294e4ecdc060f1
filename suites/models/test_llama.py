"""A Llama block with its attention annotated: the case that regional compilation was made for."""

from __future__ import annotations

import pytest

from .llama import BATCH, LENGTH, SIZE, LlamaBlock

pytestmark = pytest.mark.regional_compile


@pytest.fixture
def block(regional):
    return LlamaBlock().to(regional.device)


def hidden_states(regional, **options):
    return regional.randn(BATCH, LENGTH, SIZE, **options)


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("backward",))
def test_training_parity(regional, block):
    regional.assert_parity(block, hidden_states(regional, requires_grad=True))


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("regions", "region_counts", "few_partitions"))
def test_attention_is_one_region_in_each_graph(regional, block):
    record = regional.run(block, hidden_states(regional, requires_grad=True))

    # The attention core is connected, so one partition in the forward graph and one in the backward graph.
    assert [(r.name, r.graph, r.partitions) for r in record.regions] == [
        ("attention", "forward", 1),
        ("attention", "backward", 1),
    ]
    assert record.counters["region_compiles"] == 2
    # Softmax is in the region; the gate of the feed-forward layer, which stands outside, is not.
    ops = record.region("attention", "forward").ops
    assert any("softmax" in op for op in ops)
    assert not any("silu" in op for op in ops)
    eager = [op for op in record.graphs[0].ops if "silu" in op]
    assert len(eager) == 1


def test_inference_compiles_no_backward(regional, block):
    import torch

    with torch.no_grad():
        record = regional.run(block, hidden_states(regional))
        assert [graph.kind for graph in record.graphs] == ["inference"]
