"""Pairs of programs, a right one and a subtly wrong one, as data: what each comparison must tell apart.

A row says what eager runs, a twin that computes the same (in another legitimate way where there is one), a twin that is
wrong, and how the report must name the place and the kind of the difference. ``test_twins.py`` judges all rows; the
rows themselves are in ``twins_of_values.py`` and ``twins_of_state.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Program = Callable[..., Any]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def matrix() -> tuple[torch.Tensor, ...]:
    return (numbers(40, 16),)


def trained() -> tuple[torch.Tensor, ...]:
    return (numbers(40, 16).requires_grad_(),)


def two_trained() -> tuple[torch.Tensor, ...]:
    return numbers(40, 16).requires_grad_(), numbers(40, 16, seed=1).requires_grad_()


@dataclass(frozen=True)
class Twins:
    """One row.

    Attributes:
        name: what differs.
        program: what eager runs.
        wrong: the twin that must fail.
        where: the place that the report must name.
        kind: the kind of that mismatch.
        inputs: makes the arguments.
        right: the twin that must pass; the program itself where that can be computed in one way only.
        held: makes what the programs hold themselves, such as a module; each is then made of it: ``program(held)``.
        options: further arguments of ``assert_parity``.
        not_compared: what the report of the right twin must say was not compared.
        pending: why the row does not hold yet; empty for rows that do.
    """

    name: str
    program: Program
    wrong: Program
    where: str = "output"
    kind: str = "value"
    inputs: Callable[[], tuple[Any, ...]] = matrix
    right: Program | None = None
    held: Callable[[], Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    not_compared: str = ""
    pending: str = ""
