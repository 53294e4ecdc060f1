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


def held(cache):
    """Return the tensors of a cache: keys and values, or the states of layers without attention."""
    if isinstance(cache, transformers.EncoderDecoderCache):
        return held(cache.self_attention_cache), held(cache.cross_attention_cache)
    names = ("keys", "values", "conv_states", "recurrent_states")
    return [[getattr(layer, name) for name in names if hasattr(layer, name)] for layer in cache.layers]


def decode(regional, model, cache, *, name="past_key_values", ids="input_ids", tensors=2 * 2, **given):
    """Fill ``cache`` with a prompt, and compare the step after it: its logits, and all that the cache holds then."""

    def step(**inputs):
        output = model(**inputs, **given, use_cache=True)
        return output.logits, held(inputs[name])

    with torch.no_grad():
        model(**{ids: tokens(regional), name: cache}, **given, use_cache=True)
        report = regional.assert_parity(step, kwargs={ids: regional.randint(0, TOKENS, (BATCH, 1)), name: cache})
    # Logits, and what the cache holds; twice.
    assert report.compared >= 2 * (1 + tensors)
    assert report.anchored


@EACH
def test_a_dynamic_cache(regional, case, model):
    decode(regional, model, dynamic_cache(model))


@EACH
def test_a_static_cache(regional, case, model):
    decode(regional, model, static_cache(model))


@pytest.mark.quick
@pytest.mark.parametrize("case", [case for case in DECODERS if case.name == "llama"], ids=lambda case: case.name)
def test_a_cache_in_a_plain_dict(regional, case, model):
    """Keys and values are entries of a dict, which the program replaces by longer ones."""

    def step(input_ids, kept):
        cache = transformers.DynamicCache(config=model.config)
        for layer in range(model.config.num_hidden_layers):
            if layer in kept:
                cache.update(*kept[layer], layer)
        output = model(input_ids=input_ids, past_key_values=cache, use_cache=True)
        kept.update({index: (layer.keys, layer.values) for index, layer in enumerate(cache.layers)})
        return output.logits

    kept = {}
    with torch.no_grad():
        step(tokens(regional), kept)
        report = regional.assert_parity(step, regional.randint(0, TOKENS, (BATCH, 1)), kept)
    assert report.compared >= 2 * (1 + 4)
    assert report.anchored


@pytest.mark.parametrize("case", [case for case in CASES if case.name == "t5"], ids=lambda case: case.name)
def test_caches_of_a_decoder_that_attends_to_an_encoder(regional, case, model):
    with torch.no_grad():
        encoded = (model.encoder(input_ids=tokens(regional)).last_hidden_state,)
    cache = transformers.EncoderDecoderCache(dynamic_cache(model), dynamic_cache(model))
    decode(regional, model, cache, ids="decoder_input_ids", tensors=2 * 2, encoder_outputs=encoded)


@pytest.mark.parametrize("case", [case for case in CASES if case.name == "mamba"], ids=lambda case: case.name)
def test_states_of_a_model_without_attention(regional, case, model):
    """In evaluation mode: in training mode the model makes no states."""
    decode(regional, model.eval(), dynamic_cache(model), name="cache_params")
