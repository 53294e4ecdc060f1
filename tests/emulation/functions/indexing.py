"""Gathers, scatters, atomics, indirect indices."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .case import HALVES, SINGLE, Case
from .inputs import PAIR, SQUARE, integers, joined, normal

ROWS = joined(SQUARE, integers(0, 64, (64, 96)))
COLLIDING = joined(normal((10,)), integers(0, 10, (200,)), normal((200,)))


def unique_scatter() -> tuple[torch.Tensor, ...]:
    return torch.randn(64, 96), torch.randperm(64)[:20, None].expand(20, 96).contiguous(), torch.randn(20, 96)


def indexed_both_ways(a, i):
    return a[i, i + 1], a[:, i], a[i][:, None]


def embedding_sum(w, i):
    return F.embedding(i, w).sum(1)


CASES = [
    Case(
        "embedding",
        lambda w, i: F.embedding(i, w),
        joined(SQUARE, integers(0, 64, (10,))),
        backward=True,
        dtypes=HALVES,
        terms=10,
    ),
    Case(
        "embedding_padding",
        lambda w, i: F.embedding(i, w, padding_idx=3),
        joined(SQUARE, integers(0, 9, (40,))),
        backward=True,
        terms=40,
    ),
    Case("embedding_sum", embedding_sum, joined(SQUARE, integers(0, 64, (10, 7))), backward=True, terms=70),
    Case("gather", lambda a, i: a.gather(1, i), joined(SQUARE, integers(0, 96, (64, 5))), backward=True, terms=5),
    Case(
        "index_select", lambda a, i: a.index_select(0, i), joined(SQUARE, integers(0, 64, (9,))), backward=True, terms=9
    ),
    Case("negative_indices", lambda a, i: a[i], lambda: (torch.randn(64, 96), torch.tensor([-1, -5, 3]))),
    Case("indexed_both_ways", indexed_both_ways, joined(SQUARE, integers(0, 60, (7,))), backward=True, terms=21),
    Case("index_int32", lambda a, i: a[i], joined(SQUARE, integers(0, 64, (9,), dtype=torch.int32))),
    Case("index_put", lambda a, i, v: a.index_put((i[:, 0],), v), unique_scatter, backward=True),
    Case(
        "index_put_accumulate",
        lambda a, i, v: a.index_put((i,), v, accumulate=True),
        COLLIDING,
        backward=True,
        dtypes=HALVES,
        terms=200,
    ),
    Case(
        "index_put_of_sine",
        lambda a, i, v: a.sin().index_put((i,), v.cos(), accumulate=True),
        COLLIDING,
        backward=True,
        terms=200,
    ),
    Case("scatter", lambda a, i, v: a.scatter(0, i, v), unique_scatter, backward=True),
    Case("scatter_add", lambda a, i: torch.zeros_like(a).scatter_add(0, i, a.sin()), ROWS, backward=True, terms=64),
    Case(
        "scatter_amax",
        lambda a, i, s: a.scatter_reduce(0, i, s, "amax"),
        joined(SQUARE, integers(0, 64, (64, 96)), SQUARE),
    ),
    Case(
        "scatter_int",
        lambda i: torch.zeros(9, dtype=torch.int64, device=i.device).scatter_add(0, i, i + 1),
        integers(0, 9, (100,)),
        dtypes=SINGLE,
    ),
    Case(
        "scatter_int32_amin",
        lambda a, i: a.scatter_reduce(0, i, a - 50, "amin"),
        lambda: (torch.randint(0, 99, (40,), dtype=torch.int32), torch.randint(0, 40, (40,))),
        dtypes=SINGLE,
    ),
    Case("index_add", lambda a, i, v: a.index_add(0, i, v, alpha=2).sin(), COLLIDING, backward=True, terms=200),
    Case(
        "index_out_of_bounds",
        lambda w, i: F.embedding(i, w) + 1,
        lambda: (torch.randn(64, 96), torch.tensor([1, 64])),
        dtypes=SINGLE,
        raises="out of bounds",
    ),
    Case("masked_fill", lambda a, m: a.masked_fill(m > 0, -1), PAIR, backward=True),
    Case(
        "nonzero",
        lambda a: (a > 0).nonzero().float() * 2,
        normal((20,)),
        dtypes=SINGLE,
        dynamo={"capture_dynamic_output_shape_ops": True},
    ),
    Case(
        "masked_select", lambda a: (a[a > 0]).sin(), normal((200,)), dynamo={"capture_dynamic_output_shape_ops": True}
    ),
    Case("one_hot", lambda i: F.one_hot(i, 7).float() * 2, integers(0, 7, (40,)), dtypes=SINGLE),
    Case("take_along", lambda a, i: torch.take_along_dim(a, i % 64, 0) + 1, ROWS),
    Case("repeat_interleave", lambda a: a.repeat_interleave(3, 1) * 2, SQUARE, backward=True),
]
