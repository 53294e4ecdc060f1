"""Five Adam steps of whole models through ``regional.compile``, every one judged against float64."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import TrainingParityError

from . import moe
from .llama import QUICK, TINY, Llama, flex, token_batches

pytestmark = pytest.mark.regional_compile(requires=("backward",))


def test_five_steps_of_llama(regional):
    model = Llama(QUICK).to(regional.device)
    report = regional.assert_training_parity(model, token_batches(regional, QUICK))

    assert len(report.steps) == 5
    assert report.anchored
    # The attention of both layers is one program: compiled once in the forward and once in the backward.
    if regional.supports("share_identical"):
        assert regional.counters["region_compiles"] == 2


@pytest.mark.quick
def test_five_steps_with_a_mixture_of_experts(regional):
    model = moe.MixtureBlock(TINY).to(regional.device)
    assert regional.assert_training_parity(model, moe.batches(regional, TINY)).anchored


def test_inference(regional):
    model = Llama(TINY).to(regional.device)
    with torch.no_grad():
        regional.assert_parity(model.logits, token_batches(regional, TINY, 1)[0][0])


@pytest.mark.regional_compile(requires=("flex_attention", "regions"))
def test_inference_with_flex_attention(regional):
    model = Llama(TINY, flex(TINY, regional.device)).to(regional.device)
    tokens, _ = token_batches(regional, TINY, 1)[0]
    with torch.no_grad():
        regional.assert_parity(model.logits, tokens)
    assert {r.name for g in regional.observer.graph_records() for r in g.regions} == {"attention"}


@pytest.mark.regional_compile(requires=("flex_attention", "flex_attention_backward"))
def test_five_steps_with_flex_attention(regional):
    model = Llama(QUICK, flex(QUICK, regional.device)).to(regional.device)
    regional.assert_training_parity(model, token_batches(regional, QUICK))


@pytest.mark.regional_compile(expects_regions=False)
def test_a_training_that_is_wrong_is_noticed(regional):
    """That the cases above can fail: the compiled model forgets one layer's gradient of the third step."""

    def forgetful(model):
        calls = []
        model.blocks[1].out.register_hook(lambda gradient: gradient * (calls.append(1) or len(calls) != 3))
        return model

    model = Llama(TINY).to(regional.device)
    with pytest.raises(TrainingParityError, match="first at step 3") as caught:
        regional.assert_training_parity(model, token_batches(regional, TINY), compiled=forgetful)
    assert [(m.step, m.where) for m in caught.value.report.mismatches] == [(3, "gradient of blocks.1.out")]
