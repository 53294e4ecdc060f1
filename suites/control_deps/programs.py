"""Programs that leave Inductor free, and edges that bind it.

All work on 8 by 8 matrices. Each kernel costs seconds of g++, so most ops here are products and operators of our own,
which need none, and one program has many kinds of ops.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from pytest_regional import region, torch_matches

from .edges import Edge


@torch.library.custom_op("pytest_regional_suites::doubled_into", mutates_args=("total",))
def doubled_into(x: torch.Tensor, total: torch.Tensor) -> None:
    """Add twice ``x`` to ``total`` in place."""
    total.add_(x, alpha=2)


@doubled_into.register_fake
def _(x: torch.Tensor, total: torch.Tensor) -> None:
    return None


@torch.library.custom_op("pytest_regional_suites::reversed_rows", mutates_args=())
def reversed_rows(x: torch.Tensor) -> torch.Tensor:
    """Return the rows of ``x``, last first."""
    return x.flip(0)


@reversed_rows.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("pytest_regional_suites::is_positive", mutates_args=())
def is_positive(x: torch.Tensor) -> torch.Tensor:
    """Return whether the sum of squares is positive."""
    return x.square().sum() > 0


@is_positive.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty((), dtype=torch.bool, device=x.device)


@torch.library.custom_op("pytest_regional_suites::column_order", mutates_args=())
def column_order(x: torch.Tensor) -> torch.Tensor:
    """Return the order of the first row, as an index: a constant in a region is another matter."""
    return x[0].argsort()


@column_order.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[1], dtype=torch.int64)


@region("r")
def independent(x, w):
    h = x + 1
    return w @ w, h * 2


@region("r")
def without_kernels(x, w):
    return w @ w, reversed_rows(x)


@region("r")
def many_kinds(x, w):
    """A list of arguments, an index that holds None, several results, operators of the user's own, one that writes."""
    joined = torch.cat([w, w.t(), w])
    chosen = w[:, column_order(w)]
    values, indices = torch.topk(w, 3)
    turned = reversed_rows(w)
    product = w @ w
    doubled_into(w, x)
    return joined, chosen, values, indices, turned, product


@region("r")
def written_last(x, w):
    product = w @ w
    doubled_into(w, x)
    return product


@region("r")
def in_branches(x, w):
    def positive(x, w):
        return reversed_rows(x), w @ w

    def negative(x, w):
        return x @ w, x @ x

    return torch.cond(is_positive(x), positive, negative, (x, w))


@dataclass(frozen=True)
class Case:
    """A program of two matrices, and an order of its ops, of which each waits for the one before."""

    program: Callable[..., Any]
    order: tuple[str, ...]

    @property
    def id(self) -> str:
        """The name of the program, and the first op."""
        return f"{self.program.__name__}-{self.order[0]}-first"

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The edges that ask for the order."""
        return tuple(itertools.pairwise(self.order))

    @property
    def code(self) -> tuple[str, ...]:
        """The order as the generated code names it."""
        return tuple(map(in_code, self.order))


def in_code(name: str) -> str:
    """Return the full name of an op of these programs."""
    own = hasattr(torch.ops.pytest_regional_suites, name.partition("#")[0])
    return f"pytest_regional_suites.{name}" if own else f"aten.{name}"


KINDS = ("topk", "cat", "mm", "reversed_rows", "index")
INDEPENDENT = Case(independent, ("add", "mm", "mul"))
FORTH, BACK = Case(many_kinds, KINDS), Case(many_kinds, ("doubled_into", *KINDS[::-1]))
WRITTEN_LAST = Case(written_last, ("mm", "doubled_into"))
BRANCH_FORTH, BRANCH_BACK = Case(in_branches, ("mm", "reversed_rows")), Case(in_branches, ("reversed_rows", "mm"))

lowering_of_mutation = pytest.mark.xfail(
    torch_matches("<2.13"), reason="docs/findings/order_of_mutation.py", strict=True
)
CASES = (
    *(pytest.param(case, id=case.id) for case in (INDEPENDENT, FORTH, BACK, BRANCH_FORTH, BRANCH_BACK)),
    pytest.param(WRITTEN_LAST, id=WRITTEN_LAST.id, marks=lowering_of_mutation),
)
