"""Second backwards through one graph, and gradients with a graph of their own, as the first backward of a program."""

from __future__ import annotations

import pytest
import torch

from .retained import WAYS, creating_a_graph, retained_then_again, two_outputs

pytestmark = pytest.mark.regional_compile(requires=("backward",))


def operands(regional):
    """Return the same leaves at each call."""
    torch.manual_seed(regional.seed)
    return [regional.randn(4, 6).requires_grad_() for _ in range(2)]


def check(regional, way, compiled):
    """Run ``way`` compiled and eager on the same values."""
    inputs = operands(regional)
    again = [value.detach().clone().requires_grad_() for value in inputs]
    torch.testing.assert_close(way(compiled, *inputs), way(two_outputs, *again))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_first_backward_keeps_the_graph(regional, way):
    check(regional, way, regional.compile(two_outputs))


@pytest.mark.parametrize("way", [retained_then_again, creating_a_graph], ids=lambda way: way.__name__)
def test_a_program_that_was_loaded(regional, way):
    check(regional, way, regional.compile(two_outputs))
    regional.restart()
    check(regional, way, regional.compile(two_outputs))


def compile_and_check(regional):
    """Do in another process what is done here."""
    for way in WAYS:
        check(regional, way, regional.compile(two_outputs))


@pytest.mark.regional_compile(requires=("backward", "outer_cache"))
def test_in_another_process(regional):
    compile_and_check(regional)
    found = regional.in_new_process(compile_and_check)
    assert (found.counters.cache_hits, found.counters.region_compiles) == (1, 0)


def test_gradients_of_gradients_are_right_or_an_error(regional):
    """AOTAutograd refuses them: with a message, or (2.11) with gradients that have no graph."""

    def second(program, x, w):
        first, other = program(x, w)
        (gradient,) = torch.autograd.grad(first.sum() + other.sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.sum(), (x, w))

    compiled, inputs = regional.compile(two_outputs), operands(regional)
    again = [value.detach().clone().requires_grad_() for value in inputs]
    try:
        found = second(compiled, *inputs)
    except RuntimeError as error:
        if "double backward" not in str(error) and "does not require grad" not in str(error):
            raise
    else:
        torch.testing.assert_close(found, second(two_outputs, *again))
