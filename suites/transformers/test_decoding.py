"""One token more: the model gets a cache of keys and values as an argument, and writes to it."""

from __future__ import annotations

import pytest
import torch

from .models import BATCH, CASES, LENGTH, TOKENS, tokens, transformers

pytestmark = pytest.mark.regional_compile

DECODERS = [case for case in CASES if case.decodes]
EACH = pytest.mark.parametrize("case", DECODERS, ids=lambda case: case.name)


def dynamic_cache(model):
    return transformers.DynamicCache(config=model.config)


def static_cache(model):
    return transformers.StaticCache(config=model.config, max_cache_len=LENGTH + 4)


def decode(regional, model, cache):
    """Fill ``cache`` with a prompt, and compare the step after it: its logits, and all that the cache holds then."""

    def step(input_ids, past_key_values):
        output = model(input_ids=input_ids, past_key_values=past_key_values, use_cache=True)
        return output.logits, [(layer.keys, layer.values) for layer in past_key_values.layers]

    with torch.no_grad():
        model(input_ids=tokens(regional), past_key_values=cache, use_cache=True)
        report = regional.assert_parity(
            step, kwargs={"input_ids": regional.randint(0, TOKENS, (BATCH, 1)), "past_key_values": cache}
        )
    # Logits, keys and values of two layers; twice.
    assert report.compared >= 2 * 5
    assert report.anchored


@EACH
def test_a_dynamic_cache(regional, case, model):
    decode(regional, model, dynamic_cache(model))


@EACH
def test_a_static_cache(regional, case, model):
    decode(regional, model, static_cache(model))
