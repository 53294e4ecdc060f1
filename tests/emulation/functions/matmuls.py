"""Matrix products and convolutions: library functions, Triton templates, native products."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .case import HALVES, SINGLE, WIDE, Case, Defect
from .inputs import PAIR, integers, joined, normal

TEMPLATES = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON"}
CONVOLUTION_TEMPLATES = {"max_autotune": True, "max_autotune_conv_backends": "TRITON"}
# There are no templates of float64 products.
NARROW = ("f32", "bf16")
IMAGE = normal((1, 3, 8, 8), (4, 3, 3, 3), (4,))


def attention_by_hand(q, k, v):
    mask = torch.ones(16, 16, dtype=q.dtype, device=q.device).triu(1) * -1e4
    return ((q @ k.transpose(-1, -2)) * 0.25 + mask).softmax(-1) @ v


def channels_last_convolution(a, w, b):
    return F.conv2d(a.contiguous(memory_format=torch.channels_last), w, b).relu()


def inverse(a):
    return torch.linalg.inv(a @ a.t() + torch.eye(8, dtype=a.dtype, device=a.device) * 9) * 2


CASES = [
    Case("mm_relu", lambda a, b: torch.relu(a @ b.t()) * 2, PAIR, backward=True, dtypes=HALVES, terms=96),
    Case("addmm", F.linear, normal((64, 96), (32, 96), (32,)), backward=True, kernels=False, terms=96),
    Case("bmm", lambda a, b: torch.bmm(a, b).tanh(), normal((3, 8, 16), (3, 16, 8)), backward=True, terms=16),
    Case(
        "baddbmm",
        lambda c, a, b: torch.baddbmm(c, a, b, alpha=0.5).sin(),
        normal((3, 8, 8), (3, 8, 16), (3, 16, 8)),
        backward=True,
        terms=16,
    ),
    Case("einsum", lambda a, b: torch.einsum("bij,bkj->ik", a, b).relu(), normal((3, 8, 16), (3, 7, 16)), terms=48),
    Case("matrix_vector", lambda a, b: (a @ b).sin(), normal((64, 96), (96,)), backward=True, terms=96),
    Case("outer_product", lambda a, b: torch.outer(a, b) + 1, normal((40,), (30,)), backward=True, terms=40),
    Case(
        "native_product",
        lambda a, b: (a @ b).relu(),
        normal((64, 32), (32, 48)),
        configs={"triton.native_matmul": True},
        dtypes=HALVES,
        terms=32,
    ),
    Case(
        "int8_product",
        lambda a, b: torch._int_mm(a, b) + 1,
        integers(-99, 99, (32, 64), (64, 32), dtype=torch.int8),
        dtypes=SINGLE,
    ),
    Case("convolution", lambda a, w, b: F.conv2d(a, w, b).relu(), IMAGE, backward=True, terms=144),
    Case("convolution_channels_last", channels_last_convolution, IMAGE, backward=True, terms=144),
    Case(
        "convolution_1d",
        lambda a, w: F.conv1d(a, w, stride=2, padding=1).tanh(),
        normal((2, 4, 15), (6, 4, 3)),
        backward=True,
        terms=60,
    ),
    Case(
        "convolution_3d",
        lambda a, w: F.conv3d(a, w).relu(),
        normal((1, 2, 5, 5, 5), (3, 2, 2, 2, 2)),
        backward=True,
        terms=64,
    ),
    Case(
        "convolution_depthwise",
        lambda a, w: F.conv2d(a, w, groups=4, dilation=2) * 2,
        normal((1, 4, 9, 9), (4, 1, 3, 3)),
        backward=True,
        terms=49,
    ),
    Case(
        "convolution_transposed",
        lambda a, w: F.conv_transpose2d(a, w) + 1,
        normal((1, 3, 8, 8), (3, 4, 3, 3)),
        backward=True,
        terms=100,
    ),
    Case(
        "attention_fused",
        lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        normal((1, 2, 16, 8)),
        backward=True,
        kernels=False,
        terms=16,
        defect=Defect("attention_float64_training", mended=(2, 13), dtypes=("f64",), forward=False),
    ),
    Case("attention_by_hand", attention_by_hand, normal(*[(1, 2, 16, 8)] * 3), backward=True, terms=16),
    Case("inverse", inverse, normal((8, 8)), dtypes=WIDE, terms=64),
    Case("fourier", lambda a: torch.fft.rfft(a).abs() * 2, normal((4, 32)), dtypes=WIDE, terms=32),
    Case(
        "template_mm",
        lambda a, b: (a @ b).relu() + 1,
        normal((64, 96), (96, 80)),
        configs=TEMPLATES,
        dtypes=NARROW,
        terms=96,
    ),
    Case(
        "template_addmm",
        lambda c, a, b: F.gelu(torch.addmm(c, a, b)),
        normal((80,), (64, 96), (96, 80)),
        configs=TEMPLATES,
        dtypes=NARROW,
        terms=96,
    ),
    Case(
        "template_bmm",
        lambda a, b: torch.bmm(a, b) * 2,
        normal((3, 40, 24), (3, 24, 40)),
        configs=TEMPLATES,
        dtypes=NARROW,
        terms=24,
    ),
    Case(
        "template_convolution",
        lambda a, w: F.conv2d(a, w).relu(),
        normal((2, 8, 10, 10), (16, 8, 3, 3)),
        configs=CONVOLUTION_TEMPLATES,
        dtypes=NARROW,
        terms=72,
    ),
    Case(
        "product_of_gathered",
        lambda a, i, b: (a[i] @ b).relu(),
        joined(normal((64, 32)), integers(0, 64, (20,)), normal((32, 8))),
        backward=True,
        terms=640,
    ),
]
