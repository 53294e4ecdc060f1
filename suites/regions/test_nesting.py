"""Regions inside the bodies of higher-order operators, under checkpoint, in modules used twice."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.compiler import nested_compile_region
from torch.utils.checkpoint import checkpoint

from .annotations import in_region

pytestmark = pytest.mark.regional_compile


def pair(regional, **options):
    return regional.randn(4, 8, **options), regional.randn(8, 8, **options) / 3


def product(x, w):
    with in_region("r"):
        h = x @ w
    return h.sin()


def checkpointed_body(x, w):
    return checkpoint(product, x, w, use_reentrant=False)


def checkpoint_in_region(x, w):
    with in_region("r"):
        h = checkpoint(lambda a, b: (a @ b).sin(), x, w, use_reentrant=False)
    return h @ w


def module_used_twice(x, w):
    return product(product(x, w), w)


trained = pytest.mark.regional_compile(requires=("backward",))
checkpointed = pytest.mark.regional_compile(requires=("backward", "higher_order_operators"))


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(checkpointed_body, marks=checkpointed),
        pytest.param(checkpoint_in_region, marks=checkpointed),
        pytest.param(module_used_twice, marks=trained),
    ],
    ids=lambda p: p.__name__,
)
def test_training_parity(regional, program):
    regional.assert_parity(program, *pair(regional, requires_grad=True))


@pytest.mark.regional_compile(requires=("regions", "region_counts"))
def test_recomputed_ops_are_compiled_in_the_backward(regional):
    record = regional.run(checkpointed_body, *pair(regional, requires_grad=True))

    # The backward holds the recomputed product beside the two products of the gradient.
    backward = record.region("r", "backward")
    assert sum(op == "aten.mm.default" for op in backward.ops) == 3
    assert backward.partitions >= 1


@pytest.mark.regional_compile(requires=("nested_regions", "region_counts"))
def test_a_region_in_a_nested_compile_region(regional):
    body = nested_compile_region(product)

    def program(x, w):
        return body(body(x, w), w)

    record = regional.run(program, *pair(regional))
    # Both calls share one body, so its region is compiled once.
    assert [(r.name, r.partitions) for r in record.regions] == [("r", 1)]
    assert record.counters["region_compiles"] == 1
    regional.assert_parity(program, *pair(regional))


@pytest.mark.regional_compile(requires=("nested_regions", "region_counts"))
@pytest.mark.regional_known_failure(
    "torch",
    reason="a compiled branch takes a boxed list that cond does not pass: docs/findings/region_in_cond_branch.py",
    torch=">=2.11",
)
def test_a_region_in_both_branches_of_a_condition(regional):
    def program(x, w, v):
        def positive(a):
            with in_region("yes"):
                h = a @ w
            return h.sin()

        def negative(a):
            with in_region("no"):
                h = a @ v
            return h.cos()

        return torch.cond(x.sum() > 0, positive, negative, (x,))

    record = regional.run(program, regional.rand(4, 8), regional.randn(8, 8), regional.randn(8, 8))
    assert [(r.name, r.partitions) for r in record.regions] == [("yes", 1), ("no", 1)]
    for sign in (1.0, -1.0):
        regional.assert_parity(program, sign * regional.rand(4, 8), regional.randn(8, 8), regional.randn(8, 8))


@pytest.mark.regional_compile(requires=("backward", "higher_order_operators"))
def test_an_autograd_function_in_a_region(regional):
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            return 2 * grad @ w.T, x.T @ grad

    def program(x, w):
        with in_region("r"):
            h = Scaled.apply(x, w)
        return h.sin()

    regional.assert_parity(program, *pair(regional, requires_grad=True))


@pytest.mark.regional_compile(requires=("backward",))
def test_calls_take_a_boxed_list_without_complaint(regional, recwarn):
    class Model(nn.Module):
        def forward(self, x, w):
            return product(x, w)

    regional.run(Model(), *pair(regional, requires_grad=True))
    assert not [w for w in recwarn if "boxed" in str(w.message)]


@pytest.mark.regional_compile(requires=("regions",), expects_regions=False)
@pytest.mark.regional_known_failure(
    "torch",
    reason="a graph without annotations comes back unboxed: docs/findings/unboxed_without_regions.py",
    torch=">=2.11",
)
def test_a_graph_without_regions_takes_a_boxed_list_too(regional, recwarn):
    regional.run(lambda x, w: (x @ w).sin(), *pair(regional, requires_grad=True))
    assert not [w for w in recwarn if "boxed" in str(w.message)]
