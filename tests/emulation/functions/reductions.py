"""Reductions: persistent, looped, split, cooperative, tiled."""

from __future__ import annotations

import torch

from .case import HALVES, WIDE, Case, Defect
from .inputs import PAIR, SQUARE, normal, uniform

COOPERATIVE = {"triton.cooperative_reductions": True, "triton.force_cooperative_reductions": True}
MIX_ORDER = {"triton.mix_order_reduction": True, "triton.mix_order_reduction_non_strict_mode": True}
TILED = {"triton.tile_reductions": True, "triton.prefer_nd_tiling": True}
NOT_PERSISTENT = {"triton.persistent_reductions": False}


def with_nan() -> tuple[torch.Tensor]:
    a = torch.randn(64, 96)
    return (torch.where(a > 2, float("nan"), a),)


def several(a):
    return a.sum(1), a.amax(1), (a * a).mean(1), a.abs().amin(1)


def counts(a):
    return (a > 2).any(1), (a > -2).all(0), torch.count_nonzero(a > 0, dim=1), a.gt(0).sum()


CASES = [
    Case("sum_all", lambda a: a.sum(), normal((5000,)), backward=True, dtypes=HALVES, terms=5000),
    Case("sum_split", lambda a: a.sum(), normal((1 << 18,)), terms=1 << 18),
    Case("sum_rows", lambda a: a.sum(1), SQUARE, backward=True, terms=96),
    Case("sum_columns", lambda a: a.sum(0), SQUARE, terms=64),
    Case("sum_outer_and_inner", lambda a: a.sum((0, 2)), normal((30, 7, 300)), terms=9000),
    Case("sum_keepdim_broadcast", lambda a: a - a.mean(1, keepdim=True), SQUARE, backward=True, terms=96),
    Case("mean_outer", lambda a: a.mean(0), normal((2000, 40)), terms=2000),
    Case("amax_amin_nan", lambda a: (a.amax(1), a.amin(1)), with_nan),
    Case("argmax_argmin", lambda a: (a.argmax(1), a.argmin(0), a.argmax()), SQUARE),
    Case("argmax_looped", lambda a: (a.argmax(1), a.argmin(1)), normal((3, 5000)), dtypes=WIDE),
    Case("max_with_indices", lambda a: (*a.max(1), *a.min(0)), SQUARE, backward=True),
    Case("any_all", counts, SQUARE),
    Case("prod", lambda a: (a * 0.1 + 1).prod(1), SQUARE, terms=96),
    Case("norm_std", lambda a: (a.norm(dim=1), a.std(0)), SQUARE, backward=True, terms=96),
    Case("var_mean_persistent", lambda a: torch.var_mean(a, 1), SQUARE, terms=96),
    Case("welford_looped", lambda a: torch.var_mean(a, 1), normal((8, 3000)), terms=3000),
    Case("welford_split", lambda a: torch.var_mean(a), normal((1 << 16,)), terms=1 << 16),
    Case("several_at_once", several, SQUARE, terms=96),
    Case(
        "mix_order",
        lambda a: (a.sum(0), a.sum(1)),
        normal((4096, 64)),
        configs=MIX_ORDER,
        terms=4096,
        defect=Defect("mix_order_float64", mended=(2, 15), dtypes=("f64",)),
    ),
    Case("not_persistent", several, SQUARE, configs=NOT_PERSISTENT, terms=96),
    Case("cooperative", lambda a: a.sum(1), normal((2, 8192)), configs=COOPERATIVE, terms=8192),
    Case(
        "cooperative_softmax", lambda a: a.softmax(-1), normal((2, 4096)), configs=COOPERATIVE, dtypes=WIDE, terms=4096
    ),
    Case("tiled", lambda a, b: (a + b.t()).sum(1), normal((128, 256), (256, 128)), configs=TILED, terms=256),
    Case("sum_of_product", lambda a, b: (a * b[:, None]).sum(0), normal((64, 96), (64,)), terms=64),
    Case("mean_in_float64", lambda a: a.double().mean(1), normal((8, 512)), terms=512),
    Case("logsumexp", lambda a: a.logsumexp(1), SQUARE, backward=True, terms=96),
    Case("cosine_similarity", torch.cosine_similarity, PAIR, backward=True, terms=96),
    Case("cdist_like", lambda a, b: (a[:, None] - b[None]).square().sum(-1).sqrt(), uniform((20, 5), (30, 5))),
]
