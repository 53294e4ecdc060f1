"""Strides that leave a region are those the outer graph was traced with, in the forward and in gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .annotations import in_region

pytestmark = pytest.mark.regional_compile(requires=("channels_last",))


def images(regional, **options):
    return regional.randn(2, 4, 6, 6, **options).to(memory_format=torch.channels_last)


def stack(x):
    return torch.stack([x, x], dim=0)


def concatenate(x):
    return torch.cat([x, x], dim=1)


def index_select(x):
    return x.index_select(0, torch.arange(2, device=x.device))


def flip(x):
    return x.flip(3)


def loses_the_format(backend, torch_versions):
    """Mark a failure of a backend of PyTorch's on these versions."""
    return pytest.mark.regional_known_failure(
        backend,
        reason="Inductor chooses the strides of what leaves a region: docs/findings/strides_leaving_region.py",
        torch=torch_versions,
    )


REGION_LOSES_THE_FORMAT = loses_the_format("torch", ">=2.11")
GRAPH_LOSES_THE_FORMAT = loses_the_format("inductor", ">=2.13")


@pytest.mark.quick
@pytest.mark.parametrize(
    "operator",
    [
        pytest.param(stack, marks=[REGION_LOSES_THE_FORMAT, GRAPH_LOSES_THE_FORMAT]),
        pytest.param(concatenate, marks=[REGION_LOSES_THE_FORMAT, GRAPH_LOSES_THE_FORMAT]),
        pytest.param(index_select, marks=[loses_the_format("torch", ">=2.13"), GRAPH_LOSES_THE_FORMAT]),
        flip,
    ],
    ids=lambda operator: operator.__name__,
)
def test_a_channels_last_value_leaves_a_region(regional, operator):
    def program(x):
        with in_region("r"):
            return operator(x)

    regional.assert_parity(program, images(regional))


@pytest.mark.regional_compile(requires=("channels_last", "regions"))
@loses_the_format("torch", ">=2.13")  # 2.11 traces roll otherwise
def test_the_outer_graph_views_what_leaves_a_region(regional):
    """A trace takes ``roll`` for contiguous, so the ``reshape`` after it becomes a view of what leaves the region."""

    def program(x):
        with in_region("r"):
            h = x.roll(1, dims=2)
        return h.reshape(2, -1).sin()

    regional.assert_parity(program, images(regional))


LOSES_THE_GAPS = pytest.mark.regional_known_failure(
    "torch",
    reason="a slice leaves a region without its gaps: docs/findings/gaps_leaving_region.py",
    torch=">=2.11",
)


def slices(x):
    """Slice what is computed in a region, and read it in another.

    What is sliced is no output, and transposed in eager mode: Inductor lays it out in another way.
    """
    with in_region("r"):
        h = x.t() * 2
        pieces = h[:, ::2] + 1, h[:, 1:], h[1:, ::2]
    rows = [piece.sin() for piece in pieces]
    with in_region("s"):
        return [row.exp() for row in rows], pieces[0].exp() * 2, pieces[1].cos(), pieces[2].tanh()


@LOSES_THE_GAPS
@pytest.mark.regional_compile(requires=("backward",))
def test_slices_keep_their_gaps(regional):
    regional.assert_parity(slices, regional.randn(6, 4, requires_grad=True))


@LOSES_THE_GAPS
@pytest.mark.regional_compile(dynamic=True, requires=("backward", "dynamic_shapes"))
def test_slices_of_symbolic_sizes_keep_their_gaps(regional):
    regional.assert_parity(slices, regional.randn(6, 4, requires_grad=True))


@pytest.mark.regional_compile(requires=("channels_last", "backward"))
def test_convolution_and_its_gradients(regional):
    convolution = nn.Conv2d(4, 4, 3, padding=1).to(regional.device, memory_format=torch.channels_last)

    def program(x):
        with in_region("r"):
            h = convolution(x)
        return h.sin()

    regional.assert_parity(program, images(regional).requires_grad_())


@pytest.mark.regional_compile(requires=("backward",))
def test_gradients_of_transposed_operands(regional):
    def program(x, w):
        with in_region("r"):
            h = x.t() @ w.t()
        return h.t().sin()

    regional.assert_parity(
        program, regional.randn(8, 4, requires_grad=True), regional.randn(8, 8, requires_grad=True) / 3
    )


def test_overlapping_and_offset_inputs(regional):
    def program(x, w):
        windows = x[1:].unfold(0, 2, 1)
        with in_region("r"):
            h = windows[0].t() @ w
        return h.sin()

    regional.assert_parity(program, regional.randn(6, 8), regional.randn(8, 8))
