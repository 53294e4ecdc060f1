"""Lowerings: what Inductor makes of single operators and of their fusion."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from .checks import parity, refused
from .known_bugs import BugClass, assert_as_listed

pytestmark = pytest.mark.regional_compile
bugs = BugClass("lowering")


@bugs(197739, layer="inductor", notices="value")
def argmax_of_transposed_sum(regional):
    """The argmax of a sum with a transposed tensor: the position is counted in the other order."""

    def program(x, y):
        return (x.t() + y).argmax(), (x * y.t()).argmin()

    parity(regional, program, regional.randn(8, 33), regional.randn(33, 8))


@bugs(193661, layer="inductor", torch="<2.15", notices="value")
def argmax_of_permuted_reduction(regional):
    """The argmax behind a reduction that is fused with it, of a permuted tensor: the wrong position."""

    def program(x):
        return x.permute(2, 0, 1).abs().sum(-1).argmax()

    parity(regional, program, regional.randn(8, 5, 6))


@bugs(layer="inductor", torch="<2.13", notices="value")
def foreach_sub_forgets_alpha(regional):
    """``_foreach_sub`` with ``alpha`` subtracts as if it were 1."""

    def program(x, y):
        return torch._foreach_sub([x], [y], alpha=2)

    parity(regional, program, regional.randn(4), regional.randn(4))


@bugs(layer="inductor", torch=">=2.13", notices="exception", device="cuda-emulated", requires=("inductor_code",))
def quotient_of_uint8_on_gpu(regional):
    """The quotient of two uint8 is an int32 in Triton code, whose remainder by a uint8 does not compile."""

    def program(x):
        return x // 16 % 16

    parity(regional, program, torch.arange(200, device=regional.device).to(torch.uint8))


@bugs(layer="inductor", notices="exception", device="cuda-emulated", requires=("inductor_code",))
def atomic_addition_of_int8(regional):
    """``index_add`` of int8 on a GPU: Triton has no atomic addition of integers of fewer than 32 bits."""

    def program(x, index):
        return x.index_add(0, index, x)

    parity(regional, program, torch.ones(4, dtype=torch.int8, device=regional.device), regional.tensor([3, 2, 1, 0]))


@bugs(layer="inductor", torch="<2.15", notices="value", device="cuda-emulated", requires=("inductor_code",))
def masked_load_of_what_was_stored(regional):
    """A pool of one element on a GPU: the mask of a load is lost where the kernel stored the element before."""

    def program(x):
        y = x * 2
        return y, F.avg_pool2d(y, 2, ceil_mode=True, count_include_pad=False)

    parity(regional, program, regional.randn(1, 1, 1, 1))


@bugs(layer="inductor", notices="exception", device="cuda-emulated", requires=("inductor_code",))
def load_before_the_tensor(regional):
    """A pool with padding and a single window on a GPU: the padding is loaded, from before the tensor."""

    def program(x):
        return F.avg_pool2d(x, 3, padding=1)

    parity(regional, program, regional.randn(1, 1, 3, 3))


@bugs(197095, layer="inductor", notices="refusal")
def interpolation_of_nothing(regional):
    """``interpolate`` of a tensor without elements returns memory that nothing was written to."""

    def program(x):
        return F.interpolate(x, size=(4, 4), mode="bilinear")

    refused(regional, program, torch.zeros(1, 2, 0, 3, device=regional.device))


@bugs(185464, layer="aot_autograd", torch="<2.15", notices="value")
def multilabel_margin_with_padding(regional):
    """``multilabel_margin_loss`` of a target with -1, behind which nothing counts."""

    def program(x, target):
        return F.multilabel_margin_loss(x, target)

    parity(regional, program, regional.randn(2, 4), regional.tensor([[1, -1, 2, 3], [0, 2, -1, -1]]))


@bugs(197091, layer="inductor", notices="dtype")
def exponent_of_another_dtype(regional):
    """``ldexp`` of float32 with a float64 exponent: the dtype of the result is not eager's."""

    def program(x, n):
        return torch.ldexp(x, n)

    parity(regional, program, regional.randn(4), torch.ones(4, dtype=torch.float64, device=regional.device))


@bugs(191308, layer="inductor", torch="<2.15", notices="dtype", device="cpu")  # no GPU has such a product
def integer_batch_product(regional):
    """``bmm`` of int8 by columns of one: the result is int64."""

    def program(a, b):
        return torch.bmm(a, b)

    parity(
        regional,
        program,
        torch.full((1, 4, 4), 100, dtype=torch.int8, device=regional.device),
        torch.ones(1, 4, 1, dtype=torch.int8, device=regional.device),
    )


@bugs(layer="inductor", torch="<2.15", notices="exception", requires=("rng",))
def index_by_permutation(regional):
    """``x[torch.randperm(n)]`` does not compile."""

    def program(x):
        return x[torch.randperm(3)]

    parity(regional, program, torch.ones(3, device=regional.device))


@bugs(layer="inductor", notices="exception", in_region=False, requires=("backward", "higher_order_operators"))
def weight_read_by_branch(regional):
    """A branch of a condition gets a convolution's weight in another layout than it was traced with."""

    def program(x, weight):
        y = F.conv2d(x, weight, stride=2)
        return y, torch.cond(x.sum() > 0, torch.tanh, torch.sin, (weight,))

    regional.assert_parity(
        program,
        torch.ones(1, 2, 4, 4, device=regional.device),
        torch.ones(1, 2, 4, 4, requires_grad=True, device=regional.device),
    )


@bugs(layer="inductor", torch="<2.15", notices="exception")
def isinf_of_integers(regional):
    """``isinf`` of integers, compared with its negation, does not lower."""

    def program(x):
        infinite = torch.isinf(x)
        return torch.eq(infinite, torch.logical_not(infinite))

    parity(regional, program, regional.tensor([1, 2], dtype=torch.int32))


@bugs(layer="inductor", torch="<2.13", notices="exception", in_region=False, requires=("mutation",))
def index_fill_by_constant(regional):
    """Rows that a constant tensor names are filled in an input with gaps: the graph is not functional."""

    def program(x):
        return x.index_fill_(0, torch.tensor([1, 0], device=x.device), 0.0)

    regional.assert_parity(program, torch.ones(4, device=regional.device)[::2])


@bugs(layer="inductor", notices="exception", device="cuda-emulated", requires=("inductor_code",))
def foreach_part_reads_another(regional):
    """One kernel of a ``foreach`` on a GPU: a part reads what another part of the same launch computes."""

    def program(x):
        y = -x
        return *torch._foreach_neg([y, y.sin()]), y

    parity(regional, program, regional.randn(8))


@pytest.mark.parametrize("bug", bugs.cases())
def test_known_bug(regional, bug, record_property):
    assert_as_listed(bug, regional, record_property)
