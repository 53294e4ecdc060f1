"""Fifteen models of ``transformers``: two small layers each, random weights, nothing downloaded.

Regions are made by patching classes, in a context: ``annotated(case)``. What a model computes is left alone. Dropout is
off: this suite asks for rounding, ``regions/test_backward_draws.py`` for random numbers.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest
import torch
from packaging.version import Version

from pytest_regional import region

transformers = pytest.importorskip("transformers", reason="transformers is not installed (make transformers)")

BATCH, LENGTH, TOKENS, KINDS = 2, 12, 64, 5

Inputs = dict[str, Any]


@dataclass(frozen=True)
class ModelCase:
    """One model: its class and configuration, what it is called with, which classes become regions.

    Attributes:
        name: in test ids.
        model: the class, as "package.module:Class" below ``transformers.models``.
        config: the configuration's class, and ``settings`` what it gets.
        regions: classes whose calls become regions, with the regions' names.
        inputs: draws keyword arguments for one call.
        labels: draws the labels of a training step; without, the output is squared.
        call: keyword arguments of every call.
        checkpoints: whether the model offers activation checkpointing.
        breaks_when_checkpointed: whether Dynamo cannot trace it in one graph then.
        decodes: whether it takes a cache of keys and values and one token more.
        attributes: what is set on the model once it is made.
        since: the version of transformers from which on it is one graph.
    """

    name: str
    model: str
    config: str
    settings: Mapping[str, Any]
    regions: Mapping[str, str]
    inputs: Callable[[Any], Inputs]
    labels: Callable[[Any], torch.Tensor] | None = None
    call: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: bool = True
    breaks_when_checkpointed: bool = False
    decodes: bool = False
    attributes: Mapping[str, Any] = field(default_factory=dict)
    since: str = ""

    def build(self) -> Any:
        """Return the model with new random weights, in training mode."""
        if self.since and Version(transformers.__version__) < Version(self.since):
            pytest.skip(f"transformers {transformers.__version__}: {self.name} is no single graph before {self.since}")
        config = getattr(transformers, self.config)(**self.settings)
        model = _class(self.model)(config).train()
        for name, value in self.attributes.items():
            setattr(model, name, value)
        return model


def _class(path: str) -> Any:
    module, _, name = path.rpartition(":")
    return getattr(importlib.import_module(f"transformers.models.{module}"), name)


def classes(case: ModelCase) -> list[Any]:
    """Return the classes whose calls become regions."""
    return [_class(path) for path in case.regions]


@contextlib.contextmanager
def annotated(case: ModelCase) -> Iterator[None]:
    """Make a region of every call of the case's classes in the body."""
    with contextlib.ExitStack() as stack:
        for cls, name in zip(classes(case), case.regions.values(), strict=True):
            stack.enter_context(mock.patch.object(cls, "forward", region(name)(cls.forward)))
        yield


def token_ids(regional: Any) -> Inputs:
    return {"input_ids": tokens(regional)}


def tokens(regional: Any) -> torch.Tensor:
    return regional.randint(0, TOKENS, (BATCH, LENGTH))


def image(regional: Any) -> Inputs:
    return {"pixel_values": regional.randn(BATCH, 3, 32, 32)}


def kinds(regional: Any) -> torch.Tensor:
    return regional.randint(0, KINDS, (BATCH,))


def tokens_of_both(regional: Any) -> Inputs:
    return {"input_ids": tokens(regional), "decoder_input_ids": tokens(regional)}


def sound(regional: Any) -> Inputs:
    return {"input_features": regional.randn(BATCH, 8, 2 * LENGTH)}


_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_DECODER = {
    **_SIZES,
    "vocab_size": TOKENS,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
# One product for all experts: a loop over those that were chosen has sizes that only data tell.
_EXPERTS = {**_DECODER, "num_experts_per_tok": 2, "experts_implementation": "batched_mm"}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_CAUSAL: Mapping[str, Any] = {"inputs": token_ids, "labels": tokens, "call": {"use_cache": False}}
# The model sets its kind of problem at its first call, which is another compile at the second.
_CLASSIFIER = {"num_labels": KINDS, "problem_type": "single_label_classification"}
_ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _decoder(module: str, prefix: str, settings: Mapping[str, Any], feed_forward: str = "MLP") -> ModelCase:
    path = f"{module}.modeling_{module}:{prefix}"
    regions = {path + feed_forward: "feed_forward", path + "Attention": "attention"}
    return ModelCase(module, path + "ForCausalLM", prefix + "Config", settings, regions, decodes=True, **_CAUSAL)


CASES = (
    _decoder("llama", "Llama", {**_DECODER, "intermediate_size": 64}),
    _decoder("qwen3", "Qwen3", {**_DECODER, "intermediate_size": 64, "head_dim": 8}),
    _decoder("mixtral", "Mixtral", {**_EXPERTS, "intermediate_size": 32, "num_local_experts": 4}, "SparseMoeBlock"),
    _decoder(
        "qwen3_moe",
        "Qwen3Moe",
        {**_EXPERTS, "intermediate_size": 32, "moe_intermediate_size": 16, "num_experts": 4, "head_dim": 8},
        "SparseMoeBlock",
    ),
    _decoder(
        "deepseek_v3",
        "DeepseekV3",
        {
            **_EXPERTS,
            "num_key_value_heads": 4,
            "intermediate_size": 64,
            "moe_intermediate_size": 16,
            "n_routed_experts": 4,
            "n_group": 2,
            "topk_group": 1,
            "kv_lora_rank": 8,
            "q_lora_rank": 8,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "first_k_dense_replace": 1,
        },
        "MoE",
    ),
    ModelCase(
        "gpt2",
        "gpt2.modeling_gpt2:GPT2LMHeadModel",
        "GPT2Config",
        {
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            "vocab_size": TOKENS,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        },
        {"gpt2.modeling_gpt2:GPT2MLP": "feed_forward", "gpt2.modeling_gpt2:GPT2Attention": "attention"},
        decodes=True,
        # Not found by the class's name, and said so through logging, at which Dynamo breaks the graph.
        attributes={"loss_type": "ForCausalLM"},
        **_CAUSAL,
    ),
    ModelCase(
        "bert",
        "bert.modeling_bert:BertForMaskedLM",
        "BertConfig",
        {**_SIZES, **_NO_DROPOUT, "vocab_size": TOKENS, "intermediate_size": 64, "max_position_embeddings": 64},
        {"bert.modeling_bert:BertIntermediate": "feed_forward", "bert.modeling_bert:BertAttention": "attention"},
        token_ids,
        tokens,
        {"use_cache": False},
    ),
    ModelCase(
        "t5",
        "t5.modeling_t5:T5ForConditionalGeneration",
        "T5Config",
        {
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 1,
            "num_heads": 4,
            "vocab_size": TOKENS,
            "dropout_rate": 0.0,
            "relative_attention_num_buckets": 8,
        },
        {"t5.modeling_t5:T5LayerFF": "feed_forward", "t5.modeling_t5:T5Attention": "attention"},
        tokens_of_both,
        tokens,
        {"use_cache": False},
        breaks_when_checkpointed=True,
    ),
    ModelCase(
        "whisper_encoder",
        "whisper.modeling_whisper:WhisperEncoder",
        "WhisperConfig",
        {
            "d_model": 32,
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "num_mel_bins": 8,
            "max_source_positions": LENGTH,
            "vocab_size": TOKENS,
            "dropout": 0.0,
            "decoder_start_token_id": 1,
            "use_cache": False,
            **_ENDS,
        },
        {"whisper.modeling_whisper:WhisperAttention": "attention"},
        sound,
        since="5.23",
    ),
    ModelCase(
        "vit",
        "vit.modeling_vit:ViTForImageClassification",
        "ViTConfig",
        {**_SIZES, **_NO_DROPOUT, "intermediate_size": 64, "image_size": 32, "patch_size": 8, **_CLASSIFIER},
        {"vit.modeling_vit:ViTMLP": "feed_forward", "vit.modeling_vit:ViTAttention": "attention"},
        image,
        kinds,
    ),
    ModelCase(
        "swin",
        "swin.modeling_swin:SwinForImageClassification",
        "SwinConfig",
        {
            "image_size": 32,
            "embed_dim": 8,
            "depths": [1, 1],
            "num_heads": [2, 2],
            "window_size": 4,
            "drop_path_rate": 0.0,
            **_CLASSIFIER,
        },
        {"swin.modeling_swin:SwinMLP": "feed_forward", "swin.modeling_swin:SwinAttention": "attention"},
        image,
        kinds,
    ),
    ModelCase(
        "segformer",
        "segformer.modeling_segformer:SegformerForImageClassification",
        "SegformerConfig",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [8, 16],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "drop_path_rate": 0.0,
            "classifier_dropout_prob": 0.0,
            **_CLASSIFIER,
        },
        {
            "segformer.modeling_segformer:SegformerMixMLP": "feed_forward",
            "segformer.modeling_segformer:SegformerAttention": "attention",
        },
        image,
        kinds,
    ),
    ModelCase(
        "convnext",
        "convnext.modeling_convnext:ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "patch_size": 4, **_CLASSIFIER},
        {"convnext.modeling_convnext:ConvNextLayer": "layer"},
        image,
        kinds,
        checkpoints=False,
    ),
    ModelCase(
        "resnet",
        "resnet.modeling_resnet:ResNetForImageClassification",
        "ResNetConfig",
        {
            "embedding_size": 8,
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "layer_type": "basic",
            **_CLASSIFIER,
        },
        {"resnet.modeling_resnet:ResNetBasicLayer": "layer"},
        image,
        kinds,
        checkpoints=False,
    ),
    ModelCase(
        "mamba",
        "mamba.modeling_mamba:MambaForCausalLM",
        "MambaConfig",
        {
            "hidden_size": 16,
            "state_size": 4,
            "num_hidden_layers": 2,
            "vocab_size": TOKENS,
            "time_step_rank": 2,
            "pad_token_id": 0,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "use_mambapy": False,
        },
        {"mamba.modeling_mamba:MambaMixer": "mixer"},
        **_CAUSAL,
    ),
)

_LAYER_NORM = pytest.mark.regional_known_failure(
    "torch",
    reason="the gradient of a layer norm has other strides than its fake: docs/findings/layer_norm_strides.py",
    torch=">=2.11",
)
_CYCLE = pytest.mark.regional_known_failure(
    "torch",
    reason="each region is partitioned alone, and the cycle refused: docs/findings/interleaved_regions.py",
    torch=">=2.13",
)
_FAILURES = {
    "swin": _LAYER_NORM,
    "swin autocast": None,
    "swin checkpointed": _CYCLE,
    "segformer": _LAYER_NORM,
    "segformer autocast": None,
    "segformer checkpointed": _CYCLE,
    "mamba": pytest.mark.regional_known_failure(
        "torch",
        reason="a slice leaves a region without its gaps: docs/findings/gaps_leaving_region.py",
        torch=">=2.11",
    ),
    "bert checkpointed": _CYCLE,
}


def each_trained(cases: Sequence[ModelCase], how: str = "") -> pytest.MarkDecorator:
    """Parametrize a test that trains; what PyTorch's backend is known to fail at is marked."""
    failures = [_FAILURES.get(f"{case.name} {how}", _FAILURES.get(case.name)) for case in cases]
    marked = [pytest.param(case, marks=mark or (), id=case.name) for case, mark in zip(cases, failures, strict=True)]
    return pytest.mark.parametrize("case", marked)
