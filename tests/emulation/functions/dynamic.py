"""Symbolic sizes: the same compiled function is called with two sizes."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .case import Case
from .inputs import normal


def normalised(a):
    return F.layer_norm(a, (a.shape[1],)).sum(0)


def sizes_in_the_result(a):
    return a.view(-1, 2).sum(1) / a.shape[0] + torch.arange(a.shape[0] // 2, device=a.device), a.new_zeros(
        a.shape[0]
    ).cos()


def largest(a):
    return a * a.max().item()


CASES = [
    Case(
        "dynamic_product",
        lambda a, b: (a @ b).softmax(-1) * a.shape[0],
        normal((33, 20), (20, 45)),
        dynamic=True,
        again=normal((17, 24), (24, 50)),
        backward=True,
        terms=45,
    ),
    Case(
        "dynamic_layer_norm",
        normalised,
        normal((33, 517)),
        dynamic=True,
        again=normal((21, 300)),
        backward=True,
        terms=517,
    ),
    Case(
        "dynamic_cat_cumsum",
        lambda a, b: torch.cat([a, b], 0).cumsum(0),
        normal((7, 5), (9, 5)),
        dynamic=True,
        again=normal((11, 6), (3, 6)),
        terms=16,
    ),
    Case(
        "dynamic_reduction",
        lambda a: (a.sum(0), a.amax(1)),
        normal((70, 60)),
        dynamic=True,
        again=normal((9, 2000)),
        terms=2000,
    ),
    Case(
        "dynamic_sizes_in_result",
        sizes_in_the_result,
        normal((64,)),
        dynamic=True,
        again=normal((128,)),
        dtypes=("f32", "f64"),
        terms=2,
    ),
    Case(
        "dynamic_transposed",
        lambda a, b: a.t() + b,
        normal((33, 20), (20, 33)),
        dynamic=True,
        again=normal((70, 41), (41, 70)),
        backward=True,
    ),
    Case("scalar_from_tensor", largest, normal((64, 96)), dynamo={"capture_scalar_outputs": True}),
]
