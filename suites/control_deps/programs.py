"""Programs whose regions leave Inductor free, as pairs of a function and the edges that bind it.

All work on 8 by 8 matrices and are made of few ops, so that most of them share the kernels that g++ compiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pytest_regional import region

from .edges import Edge


@dataclass(frozen=True)
class Case:
    """A program of two matrices, edges for it, and the order that has to be seen in its code."""

    program: Callable[..., Any]
    edges: tuple[Edge, ...]
    order: tuple[str, ...]

    @property
    def id(self) -> str:
        """The name of the program."""
        return self.program.__name__


@region("r")
def independent(x, w):
    h = x + 1
    return w @ w, h * 2


@region("r")
def concatenated(x, w):
    return torch.cat([x, w, x]), x @ w, w + 1


@region("r")
def indexed(x, w):
    return w[:, [2, 0, 1]], x @ w


@region("r")
def several_results(x, w):
    values, indices = torch.topk(x, 3)
    return values, indices, x @ w


@region("r")
def written_between(x, w):
    h = x + 1
    product = w @ w
    x.mul_(2)
    return h, product


@torch.library.custom_op("pytest_regional_suites::doubled_into", mutates_args=("total",))
def doubled_into(x: torch.Tensor, total: torch.Tensor) -> None:
    """Add twice ``x`` to ``total`` in place."""
    total.add_(x, alpha=2)


@doubled_into.register_fake
def _(x: torch.Tensor, total: torch.Tensor) -> None:
    return None


@region("r")
def written_by_an_operator(x, w):
    product = w @ w
    doubled_into(w, x)
    return product


@torch.library.custom_op("pytest_regional_suites::reversed_rows", mutates_args=())
def reversed_rows(x: torch.Tensor) -> torch.Tensor:
    """Return the rows of ``x``, last first."""
    return x.flip(0)


@reversed_rows.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@region("r")
def of_the_users_own(x, w):
    return reversed_rows(x), w @ w, x + 1


def in_branches(x, w):
    def positive(x, w):
        return x + 1, w @ w

    def negative(x, w):
        return x - 1, w * 2

    with region("r"):
        return torch.cond(x.sum() > -1000, positive, negative, (x, w))


CASES = (
    Case(independent, (("add", "mm"), ("mm", "mul")), ("aten.add", "aten.mm", "aten.mul")),
    Case(concatenated, (("mm", "cat"), ("add", "mm")), ("aten.add", "aten.mm", "aten.cat")),
    Case(indexed, (("mm", "index"),), ("aten.mm", "aten.index")),
    Case(indexed, (("index", "mm"),), ("aten.index", "aten.mm")),
    Case(several_results, (("mm", "topk"),), ("aten.mm", "aten.topk")),
    Case(several_results, (("topk", "mm"),), ("aten.topk", "aten.mm")),
    Case(written_between, (("mm", "add"),), ("aten.mm", "aten.add")),
    Case(written_between, (("add", "mm"), ("mm", "mul")), ("aten.add", "aten.mm", "aten.mul")),
    Case(
        written_by_an_operator,
        (("doubled_into", "mm"),),
        ("pytest_regional_suites.doubled_into", "aten.mm"),
    ),
    Case(
        written_by_an_operator,
        (("mm", "doubled_into"),),
        ("aten.mm", "pytest_regional_suites.doubled_into"),
    ),
    Case(
        of_the_users_own,
        (("mm", "reversed_rows"), ("reversed_rows", "add")),
        ("aten.mm", "pytest_regional_suites.reversed_rows", "aten.add"),
    ),
    Case(in_branches, (("mm", "add"),), ("aten.mm", "aten.add")),
    Case(in_branches, (("add", "mm"),), ("aten.add", "aten.mm")),
)
