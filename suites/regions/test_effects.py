"""Mutation, random draws and other effects keep their order across partition borders."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .annotations import in_region

pytestmark = pytest.mark.regional_compile(requires=("mutation",))


def mutated_input(x, w):
    with in_region("r"):
        x.add_(x @ w)
    return x.sin()


def mutated_local(x, w):
    h = x @ w
    with in_region("r"):
        h.mul_(2)
        h = h @ w
    h.add_(1)
    return h


def written_between_two_parts_of_a_region(x, w):
    buffer = torch.zeros_like(x)
    with in_region("r"):
        first = (x + buffer) @ w
    buffer.add_(first.tanh())
    with in_region("r"):
        second = (x + buffer) @ w
    return first, second, buffer


@pytest.mark.quick
@pytest.mark.parametrize(
    "program", [mutated_input, mutated_local, written_between_two_parts_of_a_region], ids=lambda p: p.__name__
)
def test_mutation(regional, program):
    regional.assert_parity(program, regional.randn(4, 8), regional.randn(8, 8))


@pytest.mark.regional_compile(requires=("mutation", "backward"))
def test_a_buffer_mutated_in_a_region(regional):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(8))
            self.weight = nn.Parameter(torch.randn(8, 8))

        def forward(self, x):
            with in_region("r"):
                h = x @ self.weight
                self.seen.add_(h.detach().sum(0))
            return h.sin() + self.seen

    report = regional.assert_parity(Counting().to(regional.device), regional.randn(4, 8, requires_grad=True))
    # Output, two gradients and the buffer, of two calls.
    assert report.compared == 8


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("rng", "backward"))
def test_dropout_in_a_region_draws_what_eager_draws(regional):
    def program(x, w):
        with in_region("r"):
            h = nn.functional.dropout(x @ w, 0.5)
        return h.sin()

    regional.assert_parity(program, regional.randn(4, 8, requires_grad=True), regional.randn(8, 8))


@pytest.mark.regional_compile(requires=("rng",))
def test_draws_keep_their_order_across_borders(regional):
    def program(x, w):
        outside = torch.rand_like(x)
        with in_region("r"):
            inside = torch.rand_like(x) @ w
        again = torch.rand_like(x)
        return outside, inside, again

    regional.assert_parity(program, regional.randn(4, 8), regional.randn(8, 8))


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("rng", "backward"), inductor_configs={"fallback_random": True})
@pytest.mark.regional_known_failure(
    "torch",
    reason="the default partitioner takes an unused dropout for a tensor: docs/findings/unused_dropout.py",
    torch=">=2.11",
)
def test_an_unused_dropout_still_draws(regional):
    def program(x, w):
        with in_region("r"):
            h = x @ w
        torch.nn.functional.dropout(h, 0.5)
        return torch.nn.functional.dropout(h, 0.5)

    x, w = regional.randn(4, 8, requires_grad=True), regional.randn(8, 8, requires_grad=True)
    regional.assert_parity(program, x, w)


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("rng",))
@pytest.mark.regional_known_failure(
    "torch",
    reason="draws of one region are gathered, past a draw outside: docs/findings/draws_change_order.py",
    torch=">=2.11",
)
def test_a_draw_outside_divides_a_region_that_draws(regional):
    def program(x, w):
        with in_region("r"):
            first = torch.rand_like(x) @ w
        second = torch.rand_like(x) @ w
        with in_region("r"):
            third = torch.rand_like(x) @ w
        return first, second, third

    regional.assert_parity(program, regional.randn(4, 8), regional.randn(8, 8))


def written_late(x, w):
    with in_region("r"):
        h = x @ w
    g = h @ w + x
    with in_region("r"):
        x.add_(h)
    return g


def view_written_late(x, w):
    tail = x[1:]
    with in_region("r"):
        h = x @ w
    g = h @ w + x
    with in_region("r"):
        tail.add_(h[1:])
    return g, tail @ w


def result_written_through_a_view(x, w):
    with in_region("r"):
        h = x @ w
    h[0].zero_()
    with in_region("r"):
        g = h @ w
    return g.sin(), h


@pytest.mark.quick
@pytest.mark.parametrize(
    "program", [written_late, view_written_late, result_written_through_a_view], ids=lambda p: p.__name__
)
def test_reads_between_come_before_the_write(regional, program):
    regional.assert_parity(program, regional.randn(4, 8), regional.randn(8, 8))


@torch.library.custom_op("pytest_regional_suites::accumulate", mutates_args=("total",))
def accumulate(x: torch.Tensor, total: torch.Tensor) -> None:
    """Add ``x`` to ``total`` in place."""
    total.add_(x)


@accumulate.register_fake
def _(x: torch.Tensor, total: torch.Tensor) -> None:
    return None


@pytest.mark.regional_compile(requires=("mutation", "custom_ops"))
def test_a_mutating_custom_operator_in_a_region(regional):
    def program(x, w):
        with in_region("r"):
            h = x @ w
            total = torch.zeros_like(h)
            accumulate(h, total)
            accumulate(h, total)
        return total.sin()

    regional.assert_parity(program, regional.randn(4, 8), regional.randn(8, 8))
