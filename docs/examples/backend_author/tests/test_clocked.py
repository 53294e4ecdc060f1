"""What the clocks say, and that nothing else is changed by them."""

import pytest
import torch

import clocked
from pytest_regional import region

pytestmark = pytest.mark.regional_compile


def block(x, w):
    h = x @ w
    with region("mlp"):
        h = torch.nn.functional.silu(h) * h
    return h @ w.T


@pytest.fixture
def inputs(regional):
    return regional.randn(8, 16, requires_grad=True), regional.randn(16, 16, requires_grad=True)


def test_values_and_gradients_are_those_of_eager(regional, inputs):
    regional.assert_parity(block, *inputs)


def test_every_graph_has_its_clock(regional, inputs):
    compiled = regional.compile(block)
    x, w = inputs
    for _ in range(3):
        compiled(x, w).sum().backward()
    forward, backward = clocked.timings()
    assert len(forward.seconds) == len(backward.seconds) == 3
    assert min(forward.seconds) > 0


def test_another_test_left_nothing(regional, inputs):
    assert clocked.timings() == ()
    regional.run(block, *inputs)
    assert len(clocked.timings()) == 2


@pytest.mark.regional_compile(expects_regions=False)
def test_a_run_that_raises_is_timed_too():
    def fails(inputs):
        raise ZeroDivisionError

    timed = clocked.clock.timed(fails, 3)
    with pytest.raises(ZeroDivisionError):
        timed([])
    assert [len(timing.seconds) for timing in clocked.timings()] == [1]


def test_only_the_region_is_compiled(regional, inputs):
    record = regional.run(block, *inputs)
    assert not any("mm" in op for op in record.region("mlp", graph="forward").ops)
    record.code.assert_fused("aten.silu", "aten.mul", graph="forward")


@pytest.mark.regional_compile(requires=("interleaved_regions",))
def test_regions_that_need_each_other(regional):
    def program(x, y):
        with region("a"):
            a1, b2_needs = x.sin(), y.cos()
        with region("b"):
            b1, b2 = y * 2, a1 + 1
        with region("a"):
            a2 = b1.exp() + b2_needs
        return a2, b2

    regional.assert_parity(program, regional.randn(8), regional.randn(8))
