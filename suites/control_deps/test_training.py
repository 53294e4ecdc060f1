"""Edges in graphs that train, in backward graphs, and with symbolic sizes."""

from __future__ import annotations

import pytest

from pytest_regional import CodeAssertionError, region

from .edges import SETTINGS, AddEdges, run_ordered, run_ordered_regions
from .programs import independent, without_kernels

pytestmark = pytest.mark.regional_compile(requires=("inductor_code", "backward"), dynamic=False)


@region("r")
def trained(x, w):
    return x.sin() @ w


BACKWARD = (("cos", "mm"),)


def pair(regional):
    return regional.randn(8, 8, requires_grad=True), regional.randn(8, 8)


def test_an_edge_in_the_backward_graph(regional):
    record = run_ordered(regional, trained, *pair(regional), edges=BACKWARD)
    record.code.assert_order("aten.cos", "aten.mm", "aten.mul", graph="backward")


def test_without_it_the_backward_is_fused(regional):
    record = run_ordered(regional, trained, *pair(regional), edges=())
    record.code.assert_fused("aten.cos", "aten.mul", graph="backward")
    with pytest.raises(CodeAssertionError):
        record.code.assert_order("aten.cos", "aten.mm", "aten.mul", graph="backward")


def test_ops_that_no_graph_has_are_noticed(regional):
    with pytest.raises(AssertionError, match="no graph had all ops"):
        run_ordered(regional, without_kernels, regional.randn(8, 8), regional.randn(8, 8), edges=(("sin", "mm"),))


@pytest.mark.regional_compile(requires=("region_order", "backward"))
def test_an_edge_in_the_backward_of_a_region(regional):
    record = run_ordered_regions(regional, trained, *pair(regional), edges=BACKWARD)
    record.code.assert_order("aten.cos", "aten.mm", "aten.mul", graph="backward")


def test_parity(regional):
    """Values, gradients, strides and dtypes are those of eager, on these and on fresh inputs."""
    adding = AddEdges(*BACKWARD)
    result = regional.run_pass(adding, trained, *pair(regional), stage="post_grad", inductor_configs=SETTINGS)
    assert adding.graphs
    # The output and a gradient, of two calls.
    assert result.assert_same_numerics().compared == 4


@pytest.mark.regional_compile(requires=("inductor_code", "dynamic_shapes"))
def test_symbolic_sizes(regional):
    adding = AddEdges(("add", "mm"), ("mm", "mul"))
    settings = {**SETTINGS, "post_grad_custom_post_pass": adding}
    compiled = regional.compile(independent, dynamic=True, inductor_configs=settings)
    for rows in (4, 6):
        inputs = regional.randn(rows, 8), regional.randn(8, 8)
        record = regional.run(compiled, *inputs, as_is=True)
        for mine, eager in zip(record.output, independent(*inputs), strict=True):
            assert mine.shape == eager.shape
            assert (mine - eager).abs().max() < 1e-5
        if rows == 4:
            record.code.assert_order("aten.add", "aten.mm", "aten.mul")
    assert len(adding.graphs) == 1
    assert regional.counters["recompiles"] == 0
