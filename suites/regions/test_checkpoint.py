"""Activation checkpointing around and inside regions: what is recomputed belongs to the region, masks are equal."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from .annotations import in_region

pytestmark = pytest.mark.regional_compile(requires=("backward", "higher_order_operators"))


def pair(regional):
    return regional.randn(4, 8, requires_grad=True), regional.randn(8, 8, requires_grad=True) / 3


def dropout_beside_region(x, w):
    with in_region("r"):
        h = x @ w
    return nn.functional.dropout(h, 0.5) @ w


def dropout_in_region(x, w):
    with in_region("r"):
        h = nn.functional.dropout(x @ w, 0.5) @ w
    return h.sin()


def around(program):
    """Checkpoint all of ``program``."""

    def checkpointed(x, w):
        return checkpoint(program, x, w, use_reentrant=False)

    return checkpointed


def inside_region(x, w):
    with in_region("r"):
        h = checkpoint(lambda a, b: nn.functional.dropout(a @ b, 0.5) @ b, x, w, use_reentrant=False)
    return h.sin()


@pytest.mark.parametrize("reentrant", [True, False])
def test_both_kinds_of_checkpoint(regional, reentrant):
    def program(x, w):
        def body(a, b):
            with in_region("r"):
                h = a @ b
            return h.sin()

        return checkpoint(body, x, w, use_reentrant=reentrant).cos()

    regional.assert_parity(program, *pair(regional))


@pytest.mark.regional_known_failure(
    "torch", "seeds repeat no draws of a checkpoint: docs/findings/draws_of_checkpoint_on_gpu.py", device="cuda"
)
@pytest.mark.regional_compile(requires=("backward", "higher_order_operators", "rng"))
@pytest.mark.parametrize(
    "program",
    [around(dropout_beside_region), around(dropout_in_region), inside_region],
    ids=["dropout_beside_region", "dropout_in_region", "checkpoint_inside_region"],
)
def test_recomputed_dropout_masks_equal_those_of_the_forward(regional, program):
    regional.assert_parity(program, *pair(regional))


def save_products(context, op, *arguments, **keywords):
    """Save matrix products, recompute everything else."""
    return CheckpointPolicy.MUST_SAVE if op == torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE


def selective(x, w):
    def body(a, b):
        with in_region("r"):
            h = (a @ b) @ b.T
        return h.sin() @ b

    contexts = functools.partial(create_selective_checkpoint_contexts, save_products)
    return checkpoint(body, x, w, use_reentrant=False, context_fn=contexts)


def test_selective_checkpoint(regional):
    regional.assert_parity(selective, *pair(regional))


@pytest.mark.regional_compile(requires=("backward", "higher_order_operators", "regions"))
def test_values_saved_by_selective_checkpoint_are_not_computed_again(regional):
    record = regional.run(selective, *pair(regional))

    # Saved products stay in the forward; the backward holds the four products of their gradients alone.
    assert record.region("r", "forward").ops.count("aten.mm.default") == 2
    assert record.region("r", "backward").ops.count("aten.mm.default") == 4
