"""Scans, sorting, searching."""

from __future__ import annotations

import torch

from .case import SINGLE, WIDE, Case
from .inputs import SQUARE, distinct, integers, joined, normal


def associative(a):
    from torch._higher_order_ops.associative_scan import associative_scan

    return associative_scan(lambda x, y: x * y, a * 0.1 + 1, 0, combine_mode="pointwise")


def associative_pair(a, b):
    from torch._higher_order_ops.associative_scan import associative_scan

    def combine(x, y):
        return x[0] * y[0], x[1] * y[0] + y[1]

    return associative_scan(combine, (a * 0.1 + 1, b), 0, combine_mode="pointwise")


def product_scan(a):
    return (a * 0.1 + 1).cumprod(0)


def linear_recurrence(a, b):
    total, rows = torch.zeros_like(b[0]), []
    for factor, term in zip((a * 0.1 + 1).unbind(0), b.unbind(0), strict=True):
        total = total * factor + term
        rows.append(total)
    return product_scan(a), torch.stack(rows)


FRONT_END = {"since": (2, 15), "before": "refuses tensors of a CPU in associative_scan, before any graph exists"}

CASES = [
    Case("cumsum", lambda a: a.cumsum(1), SQUARE, backward=True, terms=96),
    Case("cumsum_int", lambda a: a.cumsum(0), integers(-9, 9, (200,)), dtypes=SINGLE),
    Case("cumprod", product_scan, SQUARE, backward=True, terms=64),
    Case("logcumsumexp", lambda a: a.logcumsumexp(1), normal((8, 96)), terms=96),
    Case("cummax_cummin", lambda a: (*a.cummax(1), *a.cummin(0)), lambda: (distinct(8, 96),)),
    Case("split_scan", lambda a: a.cumsum(0), normal((1 << 15,)), terms=1 << 15),
    Case(
        "associative_scan",
        associative,
        normal((32, 8)),
        reference=product_scan,
        **FRONT_END,
        terms=32,
        dtypes=("f32", "f64"),
    ),
    Case(
        "associative_scan_pair",
        associative_pair,
        normal((32, 8), (32, 8)),
        reference=linear_recurrence,
        **FRONT_END,
        terms=32,
        dtypes=SINGLE,
    ),
    Case("sort", lambda a: torch.sort(a, dim=1, stable=True), lambda: (distinct(8, 96),), backward=True),
    Case(
        "sort_ties",
        lambda a: torch.sort(a, dim=1, stable=True, descending=True),
        integers(0, 9, (6, 64)),
        dtypes=SINGLE,
    ),
    Case(
        "sort_small_ints",
        lambda a: a.sort(dim=0, stable=True),
        integers(-9, 9, (50, 3), dtype=torch.int8),
        dtypes=SINGLE,
    ),
    Case("argsort", lambda a: a.argsort(stable=True, dim=1), lambda: (distinct(8, 33),), dtypes=WIDE),
    Case("topk", lambda a: torch.topk(a, 3), lambda: (distinct(64, 96),), backward=True, kernels=False),
    Case(
        "searching",
        lambda a, b: (torch.bucketize(a, b), torch.searchsorted(b, a, right=True)),
        lambda: (torch.randn(64, 96), distinct(20).sort()[0]),
    ),
    Case("quantiles", lambda a: (a.median(1)[0], a.kthvalue(3, 1)[0] * 2), lambda: (distinct(8, 95),), dtypes=WIDE),
    Case("histogram", lambda a: torch.bincount(a, minlength=9) + 1, integers(0, 9, (300,)), dtypes=SINGLE),
    Case("cumsum_after_mask", lambda a, m: (a * (m > 4)).cumsum(0), joined(SQUARE, integers(0, 9, (64, 96))), terms=64),
]
