"""Edges and ops that do more than compute: random draws, ops without result, ops left to eager, demands on strides."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import region, torch_matches
from pytest_regional.backends.ordering import OrderingCycleError

from .edges import AddEdges, run_ordered
from .programs import Case, independent, reversed_rows

pytestmark = pytest.mark.regional_compile(requires=("inductor_code",), dynamic=False)

TOLD: list[str] = []


@torch.library.custom_op("pytest_regional_suites::tell", mutates_args=())
def tell(x: torch.Tensor, what: str) -> None:
    """Note that it ran; it returns nothing."""
    TOLD.append(what)


@tell.register_fake
def _(x: torch.Tensor, what: str) -> None:
    return None


torch.fx.node.has_side_effect(torch.ops.pytest_regional_suites.tell.default)


@torch.library.custom_op("pytest_regional_suites::strided", mutates_args=(), tags=(torch.Tag.needs_fixed_stride_order,))
def strided(x: torch.Tensor) -> torch.Tensor:
    """Note the strides of ``x``, and return a copy of it."""
    TOLD.append(str(x.stride()))
    return x.clone()


@strided.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.fixture(autouse=True)
def _nothing_told():
    TOLD.clear()


@region("r")
def drawing(x, w):
    return torch.nn.functional.dropout(x @ w, 0.5), torch.rand_like(x), w @ w


@pytest.mark.regional_compile(requires=("inductor_code", "rng"))
def test_draws_are_those_of_eager(regional):
    draw = "rand_like" if torch_matches(">=2.13") else "rand"  # torch 2.11 decomposes it
    edges = (("mm#2", "native_dropout"), ("native_dropout", draw))
    inputs = regional.randn(8, 8), regional.randn(8, 8)
    record = run_ordered(regional, drawing, *inputs, edges=edges, fallback_random=True)
    record.code.assert_order("aten.mm", "aten.native_dropout", f"aten.{draw}")


@pytest.mark.regional_compile(requires=("inductor_code", "rng"), expects_regions=False)
def test_draws_cannot_change_places(regional):
    def two_draws(x, w):
        return torch.rand_like(x), torch.rand_like(w)

    inputs = regional.randn(8, 8), regional.randn(8, 8)
    with pytest.raises(OrderingCycleError, match="rand_like"):
        regional.run_pass(AddEdges(("rand_like#2", "rand_like#1")), two_draws, *inputs, stage="graph")


@region("r")
def telling(x, w):
    tell(x, "first")
    return reversed_rows(x), w @ w


TELLING = (Case(telling, ("mm", "tell", "reversed_rows")), Case(telling, ("reversed_rows", "tell", "mm")))


@pytest.mark.xfail(
    torch_matches("<2.13"), reason="lowering of torch 2.11 refuses an ordered op without result", strict=True
)
@pytest.mark.parametrize("case", TELLING, ids=lambda case: case.id)
def test_an_op_without_result(regional, case):
    record = run_ordered(regional, telling, regional.randn(8, 8), regional.randn(8, 8), edges=case.edges)
    record.code.assert_order(*case.code)
    assert TOLD == ["first", "first"]  # compiled, and eager


class FallBack(AddEdges):
    """Leaves the op of the last edge that waits to eager."""

    def __call__(self, graph):
        self.ops(graph)[self.edges[-1][1]].meta["should_fallback"] = True
        super().__call__(graph)


def test_an_op_that_falls_back(regional):
    adding = FallBack(("mm", "add"))
    record = run_ordered(regional, independent, regional.randn(8, 8), regional.randn(8, 8), edges=adding)
    record.code.assert_order("aten.mm", "aten.add", "aten.mul")
    assert [event.kind for event in record.code.events if "aten.add" in str(event.ops)] == ["extern"]


@region("r")
def written_afterwards(x, w):
    turned, product = reversed_rows(x), w @ w
    x.mul_(2)
    return turned, product


@pytest.mark.regional_compile(requires=("inductor_code", "mutation"))
def test_a_waiting_node_still_reads_the_value_before_a_write(regional):
    edges = (("mm", "reversed_rows"),)
    record = run_ordered(regional, written_afterwards, regional.randn(8, 8), regional.randn(8, 8), edges=edges)
    record.code.assert_order("aten.mm", "pytest_regional_suites.reversed_rows", "aten.mul")


@region("r")
def demanding(x, w):
    return strided((x + 1).t()), w @ w, x @ w


def test_demands_on_strides_are_kept(regional):
    edges = (("mm#1", "strided"), ("strided", "mm#2"))
    record = run_ordered(regional, demanding, regional.randn(8, 8), regional.randn(8, 8), edges=edges)
    record.code.assert_order("aten.mm#1", "pytest_regional_suites.strided", "aten.mm#2")
    assert TOLD == ["(1, 8)", "(1, 8)"]  # compiled, and eager


@region("r")
def convolved(x, w, weight):
    return torch.nn.functional.conv2d(x, weight), w @ w, w.t() @ w


@pytest.mark.regional_compile(requires=("inductor_code", "channels_last"))
def test_a_channels_last_convolution(regional):
    x = regional.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)
    inputs = x, regional.randn(8, 8), regional.randn(4, 4, 3, 3)
    record = run_ordered(regional, convolved, *inputs, edges=(("mm#1", "convolution"), ("convolution", "mm#2")))
    record.code.assert_order("aten.mm#1", "aten.convolution", "aten.mm#2")
    assert record.output[0].stride() == convolved(*inputs)[0].stride()
