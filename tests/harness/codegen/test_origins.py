"""Which operators a launch is said to compute."""

from __future__ import annotations

import operator

import pytest
import torch

from pytest_regional._torch import inductor
from pytest_regional._torch.inductor import RawLaunch, recording_launches
from pytest_regional.harness.codegen import KernelLaunch, Op, events_of, origins_kept, origins_of
from pytest_regional.testing import regional

from . import programs

aten = torch.ops.aten


@pytest.fixture
def graph():
    return torch.fx.Graph()


def node(graph, target, original=None):
    made = graph.call_function(target, ())
    if original is not None:
        made.meta["original_aten"] = original
    return made


def ops_of(*nodes, externs=(), text="none"):
    launch = RawLaunch("kernel_0", False, (("buf0", nodes),))
    return origins_of([launch, *externs], text)[0].ops


def test_the_target_and_its_original_op_are_named(graph):
    plain, part = node(graph, aten.add.Tensor, aten.add.Tensor), node(graph, aten.exp.default, aten.silu.default)
    assert ops_of(plain, part) == (Op("aten.add.Tensor"), Op("aten.exp.default", inside="aten.silu"))
    # A pass that makes new nodes need not say where they come from.
    assert ops_of(node(graph, aten.add.Tensor)) == (Op("aten.add.Tensor"),)


def test_elements_of_results_and_callers_of_subgraphs_compute_nothing(graph):
    element = node(graph, operator.getitem, aten.native_layer_norm.default)
    assert ops_of(element, node(graph, torch.ops.higher_order.cond)) == ()


def test_operators_of_an_extern_call_are_not_a_kernels(graph):
    product, sine = node(graph, aten.mm.default), node(graph, aten.sin.default)
    known = RawLaunch("extern_kernels.mm", True, (("", (sine, product)),), product)
    assert ops_of(sine, product, externs=[known]) == (Op("aten.sin.default"),)
    # Where Inductor does not say which node it is, the operator called does.
    unknown = RawLaunch("extern_kernels.mm", True, (("", (sine, product)),), None)
    assert ops_of(sine, product, externs=[unknown]) == (Op("aten.sin.default"),)
    assert ops_of(sine, product) == (Op("aten.sin.default"), Op("aten.mm.default"))
    # Another product, made into code, is not taken for it.
    assert ops_of(node(graph, aten.mm.default), externs=[known]) == (Op("aten.mm.default"),)


TWO_LAUNCHES = """
cpp_fused_0 = async_compile.cpp_pybinding(['const float*', 'float*'], r'''
extern "C"  void  kernel(const float* in_ptr0,
                       float* out_ptr0)
{}
''')
def call(args):
    arg0_1, = args
    args.clear()
    buf0 = empty_strided_cpu((8, 8), (8, 1), torch.float32)
    cpp_fused_0(arg0_1, buf0)
    buf1 = empty_strided_cpu((8, 8), (8, 1), torch.float32)
    cpp_fused_0(buf0, buf1)
    return (buf1, )
"""


def test_two_launches_of_one_kernel_are_distinguished_by_their_buffers(graph):
    sine, cosine = node(graph, aten.sin.default), node(graph, aten.cos.default)
    second = RawLaunch("cpp_fused_0", False, (("buf1", (cosine,)),))
    first = RawLaunch("cpp_fused_0", False, (("buf0", (sine,)),))
    kernels = events_of(TWO_LAUNCHES, origins_of([second, first], TWO_LAUNCHES)).of_kind("kernel")
    assert [event.ops for event in kernels] == [(Op("aten.sin.default"),), (Op("aten.cos.default"),)]
    assert isinstance(kernels[0], KernelLaunch)
    assert kernels[0].ops_of == (("buf0", (Op("aten.sin.default"),)),)


def test_unreported_operators_stay_unknown():
    assert origins_kept("a text that this process never generated") is None
    assert [event.ops for event in events_of(TWO_LAUNCHES, None).of_kind("kernel")] == [None, None]
    assert [event.ops for event in events_of(TWO_LAUNCHES, ()).of_kind("kernel")] == [None, None]


def test_a_harness_inside_of_another_knows_the_operators():
    with regional("inductor"), regional("inductor") as inner:
        assert inner.run(programs.chain, inner.randn(8, 8), inner.randn(8, 8)).code.sources[0].origins


def test_listening_changes_neither_code_nor_inductor():
    original = inductor._TOLD["torch._inductor.debug"].current()
    with recording_launches() as outer, recording_launches() as inner:
        assert inductor._TOLD["torch._inductor.codegen.cpp"].current() is not original
        with regional("inductor") as r:
            source = r.run(programs.products, r.randn(4, 4), r.randn(4, 4)).code.sources[0]
    assert inductor._TOLD["torch._inductor.debug"].current() is original
    # The observer listened innermost.
    assert outer == inner == []
    assert "Provenance" not in source.text
    assert source.origins == ()
