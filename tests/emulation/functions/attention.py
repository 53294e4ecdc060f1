"""Flex attention; its float64 reference is written by hand, since eager flex attention has no backward on CPU."""

from __future__ import annotations

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from .case import Case
from .inputs import normal

LENGTH = 128
HEADS = normal(*[(1, 2, LENGTH, 16)] * 3)
GROUPED = normal((1, 4, LENGTH, 16), (1, 2, LENGTH, 16), (1, 2, LENGTH, 16))
WITH_BIAS = normal(*[(1, 2, LENGTH, 16)] * 3, (2, LENGTH))
BOTH = ("f32", "bf16")


def causal(b, h, i, j):
    return i >= j


def window(b, h, i, j):
    return (i >= j) & (i - j < 40)


def masks(mask_mod):
    """Return the mask by type of device."""
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    return {device: create_block_mask(mask_mod, None, None, LENGTH, LENGTH, device=device) for device in devices}


CAUSAL = masks(causal)
WINDOW = masks(window)


def scores(q, k):
    return (q.float() @ k.float().transpose(-1, -2)) / q.shape[-1] ** 0.5


def mixed(weights, v):
    """Return softmax of float scores times values, as the kernel does it in any dtype."""
    return weights.softmax(-1).to(v.dtype) @ v


def positions(q):
    i = torch.arange(LENGTH, device=q.device)
    return i[:, None], i[None]


def distance(q, k, v):
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j).abs() * 0.1)


def distance_reference(q, k, v):
    i, j = positions(q)
    return mixed(scores(q, k) + (i - j).abs() * 0.1, v)


def masked(q, k, v):
    return flex_attention(q, k, v, block_mask=CAUSAL[q.device.type])


def masked_reference(q, k, v):
    i, j = positions(q)
    return mixed(scores(q, k).masked_fill(i < j, -torch.inf), v)


def grouped(q, k, v):
    return flex_attention(q, k, v, block_mask=WINDOW[q.device.type], enable_gqa=True)


def grouped_reference(q, k, v):
    i, j = positions(q)
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    return mixed(scores(q, k).masked_fill((i < j) | (i - j >= 40), -torch.inf), v)


def capped(q, k, v):
    return flex_attention(
        q, k, v, score_mod=lambda s, b, h, i, j: 5.0 * torch.tanh(s / 5.0), block_mask=CAUSAL[q.device.type]
    )


def capped_reference(q, k, v):
    i, j = positions(q)
    return mixed((5.0 * torch.tanh(scores(q, k) / 5.0)).masked_fill(i < j, -torch.inf), v)


def biased(q, k, v, bias):
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h, j])


def biased_reference(q, k, v, bias):
    return mixed(scores(q, k) + bias[None, :, None, :], v)


CASES = [
    Case("flex", distance, HEADS, reference=distance_reference, backward=True, dtypes=BOTH, terms=LENGTH),
    Case("flex_block_mask", masked, HEADS, reference=masked_reference, backward=True, dtypes=BOTH, terms=LENGTH),
    Case(
        "flex_grouped", grouped, GROUPED, reference=grouped_reference, backward=True, dtypes=("f32",), terms=2 * LENGTH
    ),
    Case("flex_capped", capped, HEADS, reference=capped_reference, dtypes=("f32",), terms=LENGTH),
    Case("flex_captured", biased, WITH_BIAS, reference=biased_reference, dtypes=("f32",), backward=True, terms=LENGTH),
]
