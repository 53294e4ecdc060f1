"""Tensors cut, joined, padded, transposed; pooling and resizing; grids of two and three dimensions."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .case import HALVES, SINGLE, Case
from .inputs import PAIR, SQUARE, normal

THREE_TILES = {"triton.max_tiles": 3, "triton.prefer_nd_tiling": True}
BLOCK_POINTERS = {"triton.use_block_ptr": True}
DESCRIPTORS = {"triton.use_tensor_descriptor": True, "assume_aligned_inputs": True}


def moved_and_padded(a):
    return a.roll(3, 1), a.flip(0), F.pad(a, (1, 2), value=3.0), F.pad(a[None], (2, 2), mode="reflect")


def replicated(a):
    return F.pad(a, (2, 1, 1, 2), mode="replicate") * 2, F.pad(a, (1, 1, 1, 1), mode="circular")


def pools(a):
    return F.max_pool2d(a, 2), F.avg_pool2d(a, 3, 2, 1), F.adaptive_avg_pool2d(a, 3)


def resized(a):
    return F.interpolate(a, scale_factor=2), F.interpolate(a, scale_factor=2, mode="bilinear")


def triangles(a):
    return a.triu(1) + a.tril(-1), a.diagonal() * 2, torch.diag_embed(a[0])


def ranges(a):
    rows, like_a = torch.arange(96, device=a.device), {"dtype": a.dtype, "device": a.device}
    return a + rows + torch.full((64, 1), 2.0, **like_a), a * torch.linspace(0, 1, 96, **like_a)


def constants(a):
    return a * torch.tensor([1.0, 2.0, 3.0, 4.0], device=a.device), a + torch.eye(5, 4, device=a.device)


def channels_last(a):
    return (a.contiguous(memory_format=torch.channels_last).relu() + 1).mean((2, 3))


def views(a):
    b = a.reshape(32, 2, 96).permute(1, 0, 2).flatten(0, 1)
    return b.sin().view(64, 96) + a.as_strided((64, 96), (96, 1)), b.unflatten(0, (2, 32)).squeeze()


CASES = [
    Case("transposed", lambda a, b: a.t().contiguous() + b, normal((64, 96), (96, 64)), backward=True, dtypes=HALVES),
    Case("permuted", lambda a, b: a.permute(2, 0, 1).contiguous() + b, normal((8, 16, 24), (24, 8, 16)), backward=True),
    Case(
        "three_tiles",
        lambda a, b, c: a.permute(2, 1, 0) + b + c.permute(1, 0, 2),
        normal((24, 16, 8), (8, 16, 24), (16, 8, 24)),
        configs=THREE_TILES,
    ),
    Case("block_pointers", lambda a, b: (a + b.t()).relu(), normal((64, 128), (128, 64)), configs=BLOCK_POINTERS),
    Case("tensor_descriptors", lambda a, b: (a + b).relu(), normal((64, 128), (64, 128)), configs=DESCRIPTORS),
    Case("cat", lambda a, b: torch.cat([a, b * 2], 1), PAIR, backward=True),
    Case(
        "stack_split",
        lambda a, b: (torch.stack([a, b]).sum(0), *(x.sin() for x in a.split(32, 1))),
        PAIR,
        backward=True,
    ),
    Case("slice_scatter", lambda a, b: a.slice_scatter(b[:, :10] * 2, 1, 5, 15), PAIR, backward=True),
    Case("select_scatter", lambda a, b: a.select_scatter(b[0].sin(), 0, 3), PAIR),
    Case("unfold", lambda a: a.unfold(1, 8, 4).sum(-1), SQUARE, backward=True, terms=8),
    Case("moved_and_padded", moved_and_padded, SQUARE, backward=True),
    Case("padded_replicated", replicated, normal((1, 2, 7, 9)), backward=True, terms=9),
    Case("padded_sum", lambda a: F.pad(a, (0, 5)).sum(1), normal((33, 27)), terms=32),
    Case("pools", pools, normal((1, 3, 12, 12)), backward=True, terms=16),
    Case(
        "max_pool_indices",
        lambda a: F.max_pool2d(a, 3, 2, 1, return_indices=True),
        normal((1, 3, 12, 12)),
        backward=True,
        terms=4,
    ),
    Case("resized", resized, normal((1, 2, 8, 8)), backward=True, terms=16),
    Case("bicubic", lambda a: F.interpolate(a, scale_factor=2, mode="bicubic"), normal((1, 2, 8, 8)), terms=16),
    Case(
        "grid_sample",
        lambda a, g: F.grid_sample(a, g.tanh(), align_corners=False),
        normal((1, 2, 8, 8), (1, 5, 5, 2)),
        dtypes=("f32", "f64"),
        terms=4,
    ),
    Case("pixel_shuffle", lambda a: F.pixel_shuffle(a, 2) * 2, normal((1, 8, 6, 6)), backward=True),
    Case("triangles", triangles, SQUARE, backward=True),
    Case("ranges", ranges, SQUARE),
    Case("constants", constants, normal((5, 4)), dtypes=SINGLE),
    Case("channels_last", channels_last, normal((2, 4, 9, 9)), backward=True, terms=81),
    Case("views", views, SQUARE, backward=True),
    Case(
        "expanded", lambda a, b: a[:, None].expand(64, 3, 96) * b, normal((64, 96), (3, 1)), backward=True, terms=6144
    ),
]
