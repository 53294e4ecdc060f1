"""Small pieces of models, trained: many kernels in one graph."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .case import Case, Defect
from .inputs import integers, joined, normal


def scaled(*sizes: tuple[int, ...]):
    """Return a drawer of weights small enough that layers neither saturate nor vanish."""
    return lambda: tuple(torch.randn(size) * 0.2 for size in sizes)


def perceptron(x, first, second, target):
    hidden = F.gelu(F.layer_norm(x @ first, (32,)))
    return F.cross_entropy(hidden @ second, target)


def transformer_block(x, qkv, out, up, down, weight):
    batch, length, width = x.shape
    q, k, v = (F.rms_norm(x, (width,), weight) @ qkv).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
    x = x + mixed @ out
    gate, value = (F.rms_norm(x, (width,), weight) @ up).chunk(2, -1)
    return x + (F.silu(gate) * value) @ down


def rotary(q, k):
    half = q.shape[-1] // 2
    like_q = {"dtype": q.dtype, "device": q.device}
    angle = torch.arange(q.shape[-2], **like_q)[:, None] * 0.1 ** (torch.arange(half, **like_q) / half)
    cos, sin = torch.cat([angle.cos()] * 2, -1).to(q.dtype), torch.cat([angle.sin()] * 2, -1).to(q.dtype)

    def turned(x):
        return torch.cat([-x[..., half:], x[..., :half]], -1)

    return q * cos + turned(q) * sin, k * cos + turned(k) * sin


def recurrent_cell(x, h, c, weights, recurrent):
    i, f, g, o = (x @ weights + h @ recurrent).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def image_classifier(x, kernel, weight, bias, head, target):
    mean, variance = torch.zeros_like(weight), torch.ones_like(weight)
    y = F.relu(F.batch_norm(F.conv2d(x, kernel, padding=1), mean, variance, weight, bias, True))
    return F.cross_entropy(F.max_pool2d(y, 2).mean((2, 3)) @ head, target)


def mixture_of_experts(x, router, experts):
    weight, chosen = (x @ router).softmax(-1).max(-1)
    return torch.einsum("td,tdh->th", x, experts[chosen]).relu() * weight[:, None]


CASES = [
    Case(
        "perceptron",
        perceptron,
        joined(normal((16, 24)), scaled((24, 32), (32, 7)), integers(0, 7, (16,))),
        backward=True,
        terms=512,
    ),
    Case(
        "transformer_block",
        transformer_block,
        joined(normal((2, 8, 16)), scaled((16, 48), (16, 16), (16, 64), (32, 16)), normal((16,))),
        backward=True,
        terms=512,
        defect=Defect("attention_float64_training", mended=(2, 13), dtypes=("f64",), forward=False),
    ),
    Case("rotary", rotary, normal((1, 2, 8, 16), (1, 2, 8, 16)), backward=True),
    Case(
        "recurrent_cell",
        recurrent_cell,
        joined(normal((4, 10), (4, 12), (4, 12)), scaled((10, 48), (12, 48))),
        backward=True,
        terms=22,
    ),
    Case(
        "image_classifier",
        image_classifier,
        joined(normal((2, 3, 8, 8)), scaled((4, 3, 3, 3)), normal((4,), (4,)), scaled((4, 5)), integers(0, 5, (2,))),
        backward=True,
        terms=4096,
    ),
    Case(
        "mixture_of_experts",
        mixture_of_experts,
        joined(normal((12, 8)), scaled((8, 3), (3, 8, 10))),
        backward=True,
        terms=96,
    ),
]
