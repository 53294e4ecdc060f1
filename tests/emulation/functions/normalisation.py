"""Softmax, normalisations, losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .case import HALVES, Case, Defect
from .inputs import PAIR, SQUARE, integers, joined, normal

IMAGES = normal((2, 4, 9, 9), (4,), (4,))
LONG = normal((3, 5000), (5000,), (5000,))
CLASSES = joined(SQUARE, integers(0, 96, (64,)))
MIX_ORDER = {"triton.mix_order_reduction": True}
MIX_ORDER_ALWAYS = {"triton.mix_order_reduction": True, "triton.mix_order_reduction_non_strict_mode": True}


def batch_norm(x, weight, bias):
    mean, variance = torch.zeros_like(weight), torch.ones_like(weight)
    return F.batch_norm(x, mean, variance, weight, bias, True)


def batch_norm_statistics(x, weight, bias):
    mean, variance = torch.zeros_like(weight), torch.ones_like(weight)
    y = F.batch_norm(x, mean, variance, weight, bias, True, momentum=0.3)
    return y, mean, variance


def batch_norm_inference(x, weight, bias):
    return F.batch_norm(x, bias.detach(), weight.detach().abs() + 1, weight, bias, False)


def channels_last_batch_norm(x, weight, bias):
    return batch_norm(x.contiguous(memory_format=torch.channels_last), weight, bias)


def losses(a, b):
    return F.mse_loss(a, b), F.smooth_l1_loss(a, b), F.binary_cross_entropy_with_logits(a, b.sigmoid())


def divergence(a, b):
    return F.kl_div(a.log_softmax(-1), b.softmax(-1), reduction="batchmean")


CASES = [
    Case("softmax_persistent", lambda a: a.softmax(-1), SQUARE, backward=True, dtypes=HALVES, terms=96),
    Case("softmax_looped", lambda a: a.softmax(-1), normal((3, 5000)), backward=True, terms=5000),
    Case("softmax_outer", lambda a: a.softmax(0), SQUARE, backward=True, terms=64),
    Case("log_softmax", lambda a: a.log_softmax(-1), SQUARE, backward=True, terms=96),
    Case("layer_norm", lambda a: F.layer_norm(a, (96,)), SQUARE, backward=True, dtypes=HALVES, terms=96),
    Case("layer_norm_looped", lambda a, w, b: F.layer_norm(a, (5000,), w, b), LONG, backward=True, terms=5000),
    Case("rms_norm", lambda a, w: F.rms_norm(a, (96,), w), normal((64, 96), (96,)), backward=True, terms=96),
    Case(
        "mix_order_rms_norm",
        lambda a, w: F.rms_norm(a, (64,), w),
        normal((8192, 64), (64,)),
        backward=True,
        configs=MIX_ORDER_ALWAYS,
        terms=8192,
        defect=Defect("mix_order_float64", mended=(2, 15), dtypes=("f64",), forward=False),
    ),
    Case(
        "mix_order_layer_norm",
        lambda a, w, b: F.layer_norm(a, (256,), w, b),
        normal((4096, 256), (256,), (256,)),
        backward=True,
        configs=MIX_ORDER,
        dtypes=("f32", "bf16"),
        terms=4096,
    ),
    Case("batch_norm", batch_norm, IMAGES, backward=True, terms=162),
    Case("batch_norm_statistics", batch_norm_statistics, IMAGES, terms=162),
    Case("batch_norm_inference", batch_norm_inference, IMAGES, backward=True, terms=162),
    Case("batch_norm_channels_last", channels_last_batch_norm, IMAGES, backward=True, terms=162),
    Case("group_norm", lambda a, w, b: F.group_norm(a, 2, w, b), IMAGES, backward=True, terms=162),
    Case("instance_norm", lambda a: F.instance_norm(a), normal((2, 4, 9, 9)), backward=True, terms=81),
    Case("cross_entropy", F.cross_entropy, CLASSES, backward=True, terms=96),
    Case(
        "cross_entropy_smoothed",
        lambda a, t: F.cross_entropy(a, t, label_smoothing=0.1, ignore_index=3),
        CLASSES,
        backward=True,
        terms=6144,
    ),
    Case("losses", losses, PAIR, backward=True, terms=6144),
    Case("divergence", divergence, PAIR, backward=True, terms=6144),
]
