"""Regions: what is particular to compiling parts of a graph. The reference has none of those in PyTorch's passes."""

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops import associative_scan
from torch.fx.traceback import annotate

from pytest_regional import region

from .checks import parity
from .known_bugs import BugClass, BugNoticedError, assert_as_listed

pytestmark = pytest.mark.regional_compile
bugs = BugClass("regions", needs=("regions",))

#: In what Inductor makes of a part of a graph, and not in what it makes of a whole one.
NOT_WHOLE = {"inductor": None}


@bugs(layer="regions", torch="<2.15", notices="exception")
def slice_assignment_in_region(regional):
    """A constant assigned into a slice in a region does not compile."""

    def program(x):
        z = torch.zeros_like(x)
        z[:, 0] = 1.0
        return x * z

    parity(regional, program, regional.randn(4, 8, requires_grad=True))


@bugs(layer="regions", torch="<2.15", notices="exception")
def constant_in_region(regional):
    """A tensor made of numbers in a region does not compile."""

    def program(x):
        return x @ x.new_tensor([1.0, 2.0])

    parity(regional, program, torch.ones(2, 2, device=regional.device))


@bugs(layer="regions", torch="<2.15", notices="exception", dynamic=True, requires=("dynamic_shapes",))
def expression_size_input(regional):
    """A value enters a region whose size is an expression of symbols."""

    def program(x, w):
        doubled = torch.cat([x, x])
        with region("r"):
            h = doubled.sin() + 1
        return h @ w

    regional.assert_parity(program, regional.randn(4, 8), regional.randn(8, 8))


@bugs(layer="regions", notices="value", requires=("rng",))
def draws_change_order(regional):
    """Draws in a region are gathered past a draw outside."""

    def program(x):
        with region("r"):
            first = torch.rand_like(x) @ x
        second = torch.rand_like(x) @ x
        with region("r"):
            third = torch.rand_like(x) @ x
        return first, second, third

    regional.assert_parity(program, regional.randn(8, 8))


@bugs(layer="regions", notices="strides", requires=("channels_last",))
def strides_leaving_region(regional):
    """A channels-last value leaves a region with other strides."""

    def program(x):
        return torch.stack([x, x])

    parity(regional, program, regional.randn(2, 4, 6, 6).to(memory_format=torch.channels_last))


def combined(left, right):
    return left[0] * right[0], left[1] * right[0] + right[1]


@bugs(layer="regions", notices="exception", requires=("backward", "higher_order_operators"))
def gaps_leaving_region(regional):
    """A slice leaves a region without its gaps: a trained scan of pairs fails in its backward."""

    def program(a, b):
        with region("r"):
            h = associative_scan(combined, (a, b), 1, combine_mode="generic")[1]
        return h.sin()

    regional.assert_parity(program, *(regional.rand(2, 4, 3, requires_grad=True) for _ in range(2)))


@bugs(layer="regions", notices="exception", requires=("backward",))
def layer_norm_strides(regional):
    """A gradient of a transposed layer norm enters a region with other strides than traced."""

    def program(x):
        with region("r"):
            h = torch.tanh(x)
        return torch.nn.functional.layer_norm(h, (8,)).transpose(1, 2).contiguous()

    regional.assert_parity(program, regional.randn(2, 64, 8, requires_grad=True))


@bugs(layer="regions", torch=">=2.13", notices="exception", requires=("region_ids",))
def interleaved_regions(regional):
    """Regions that wait for each other are refused as a cycle."""

    def program(x, y, w):
        with region("a"):
            a1 = x @ w
        with region("b"):
            b1, b2 = y @ w, a1 @ w.T
        with region("a"):
            a2 = b1 @ w.T
        return a2, b2

    regional.assert_parity(program, regional.randn(4, 8), regional.randn(4, 8), regional.randn(8, 8))


@bugs(layer="regions", notices="exception", requires=("higher_order_operators", "nested_regions"))
def region_in_cond_branch(regional):
    """A region inside a branch of a condition compiles and then cannot be called."""

    def positive(x):
        with region("yes"):
            return (x @ x).sin()

    def program(x):
        return torch.cond(x.sum() > 0, positive, lambda x: x.cos(), (x,))

    regional.assert_parity(program, regional.rand(8, 8))


@bugs(layer="regions", torch=">=2.13", notices="partitions", requires=("region_counts", "few_partitions", "backward"))
def sum_of_gradients_divides_region(regional):
    """The sum of the gradients of a value that is used twice is in no region, and divides it."""

    def program(x, w):
        with region("r"):
            h = x @ w
            return h.sin() + h.cos()

    record = regional.run(program, *(regional.rand(4, 4, requires_grad=True) for _ in range(2)))
    one_partition(record)


@bugs(layer="regions", torch=">=2.13", notices="partitions", requires=("region_counts", "few_partitions", "backward"))
def gradient_of_op_in_place_leaves_region(regional):
    """The gradients of an operator in place lose the annotation, and divide the region."""

    def program(x, w):
        with region("r"):
            y = x @ w
            torch.nn.functional.silu(y, inplace=True)
            return y.sin() @ w

    record = regional.run(program, *(regional.rand(4, 4, requires_grad=True) for _ in range(2)))
    one_partition(record)


def one_partition(record):
    found = record.region("r", "backward").partitions
    if found != 1:
        raise BugNoticedError("partitions", f"the backward of the region is {found} partitions")


@bugs(layer="regions", notices="refusal", in_region=False)
def annotation_mistakes(regional):
    """A misspelt key of an annotation is accepted in silence."""

    def program(x):
        with annotate({"compile_with_inductor": {"inductor_regoin": "r"}}):
            return x @ x

    try:
        regional.compile(program)(regional.randn(4, 4))
    except (RuntimeError, ValueError, TypeError):
        return
    raise BugNoticedError("refusal", "the annotation was taken")


@bugs(layer="inductor", torch=">=2.15", notices="exception", but=NOT_WHOLE, dynamic=True, requires=("dynamic_shapes",))
def empty_dynamic_region(regional):
    """A region whose tensors are empty and have a dynamic size besides names a symbol that it does not define."""

    def program(x):
        return x.sin()

    parity(regional, program, regional.randn(0, 4))


@bugs(layer="inductor", torch=">=2.13", notices="exception", but=NOT_WHOLE, dynamic=True, requires=("dynamic_shapes",))
def effect_token_of_dynamic_region(regional):
    """``linalg.inv`` takes an effect token: a region with it cannot be called where sizes are dynamic."""

    def program(x):
        return torch.linalg.inv(x @ x.mT + 1)

    parity(regional, program, regional.randn(4, 1, 1))


@bugs(layer="inductor", torch=">=2.15", notices="exception", but=NOT_WHOLE, requires=("rng",))
def dropout_of_nothing_in_region(regional):
    """A dropout of a tensor without elements, which trains, has a mask of floats in a region that expects booleans."""

    def program(x):
        sine = x.sin()
        with region("r"):
            return torch.nn.functional.dropout(sine, 0.5)

    regional.assert_parity(program, regional.randn(0, requires_grad=True))


@pytest.mark.parametrize("bug", bugs.cases())
def test_known_bug(regional, bug, record_property):
    assert_as_listed(bug, regional, record_property)
