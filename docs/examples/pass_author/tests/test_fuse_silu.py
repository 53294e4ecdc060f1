"""What the pass does to graphs, to results, to caches and to the code that is generated."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fuse_silu import FuseSiLU
from pytest_regional import region

pytestmark = pytest.mark.regional_compile


def gated(x, w):
    h = x @ w
    with region("gate"):
        return torch.sigmoid(h) * h + 1


def sigmoid_read_twice(x, w):
    h = x @ w
    with region("gate"):
        s = torch.sigmoid(h)
        return h * s + s


@pytest.fixture
def inputs(regional):
    return regional.randn(8, 16, requires_grad=True), regional.randn(16, 16, requires_grad=True)


def test_the_pattern_is_replaced_and_nothing_else_changes(regional, inputs):
    result = regional.run_pass(FuseSiLU(), gated, *inputs, stage="pre_grad")
    result.assert_replaced(before="torch.sigmoid", after="torch.nn.functional.silu")
    result.assert_count("operator.add", 1)
    result.assert_same_numerics()


def test_a_second_run_finds_nothing(regional, inputs):
    regional.run_pass(FuseSiLU(), gated, *inputs, stage="pre_grad").assert_idempotent()


def test_a_sigmoid_that_somebody_else_reads_stays(regional, inputs):
    result = regional.run_pass(FuseSiLU(), sigmoid_read_twice, *inputs, stage="pre_grad")
    assert not result.changed


def test_compiled_with_the_pass_it_is_eager_still(regional, inputs):
    regional.assert_parity(gated, *inputs, compiled=lambda fn: regional.compile(fn, pre_grad_pass=FuseSiLU()))


@pytest.mark.regional_compile(requires=("regions",))
def test_the_new_operator_is_in_the_region_of_the_old_one(regional, inputs):
    record = regional.run(regional.compile(gated, pre_grad_pass=FuseSiLU()), *inputs, as_is=True)
    assert "aten.silu.default" in record.region("gate", graph="forward").ops
    assert "aten.sigmoid.default" not in record.graphs[0].ops


@pytest.mark.regional_compile(pre_grad_pass_timing="late", requires=("pre_grad_timing", "outer_cache"))
def test_a_hit_costs_no_run_of_the_pass(regional, pre_grad_pass, inputs):
    fusing = pre_grad_pass(uuid=FuseSiLU().uuid(), transform=FuseSiLU())
    for hits, misses in ((0, 1), (1, 0)):
        with regional.expect(cache_hits=hits, cache_misses=misses, pre_grad_calls=misses):
            # Whole-graph Inductor keeps a graph that trains once its backward has been compiled.
            regional.run(regional.compile(gated, pre_grad_pass=fusing), *inputs, as_is=True)
        regional.restart()


@settings(max_examples=5)
@given(rows=st.integers(1, 9), columns=st.integers(1, 9), swapped=st.booleans())
def test_any_size_and_either_side(regional, rows, columns, swapped):
    def program(x):
        with region("gate"):
            return torch.sigmoid(x) * x if swapped else x * x.sigmoid()

    x = regional.randn(rows, columns, requires_grad=True)
    regional.run_pass(FuseSiLU(), program, x, stage="pre_grad").assert_count("torch.nn.functional.silu", 1)
    regional.assert_parity(program, x, compiled=lambda fn: regional.compile(fn, pre_grad_pass=FuseSiLU()))
