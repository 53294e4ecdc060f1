"""Decompositions are an internal step, node by node: nothing is traced again that a trace cannot run."""

import contextlib
import operator

import pytest
import torch
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._higher_order_ops.effects import with_effects
from torch._inductor.decomposition import select_decomp_table
from torch._prims.rng_prims import graphsafe_run_with_rng_state, run_and_save_rng_state
from torch._subclasses import FakeTensorMode
from torch.fx.traceback import annotate, preserve_node_meta

from pytest_regional.reference.full_inductor import MissingValueError, decompose
from tests.reference.full_inductor.backend import node_named, ops, traced

ATEN = torch.ops.aten
functional = torch.nn.functional


class Block(torch.nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.rms = torch.nn.RMSNorm(8)
        self.dropout = dropout

    def forward(self, x):
        x = functional.silu(self.norm(self.linear(x)))
        x = functional.dropout(functional.gelu(self.rms(x)), self.dropout)
        return functional.cross_entropy(torch.softmax(x, -1), x.argmax(-1))


def joint_graph(model, x, decompositions=None):
    with contextlib.ExitStack() as stack:
        return aot_export_joint_with_descriptors(stack, model, (x,), decompositions=decompositions).graph_module


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_same_ops_as_a_capture_with_the_table(dropout):
    model, x = Block(dropout), torch.randn(4, 8)
    with_table = joint_graph(model, x, select_decomp_table())
    without = joint_graph(model, x)
    assert ops(without) != ops(with_table)
    assert ops(decompose(without)) == ops(with_table)


def test_values_are_those_of_the_graph_before():
    def fn(x, w):
        return functional.layer_norm(functional.gelu(x @ w), (8,)), torch.softmax(x, 0)

    inputs = torch.randn(4, 8), torch.randn(8, 8)
    gm = traced(fn, *inputs)
    torch.testing.assert_close(decompose(gm)(*inputs), fn(*inputs))
    assert "aten.gelu.default" not in ops(gm)
    gm.graph.lint()


def test_fake_values_are_true_and_complete():
    gm = decompose(traced(lambda x: functional.layer_norm(functional.gelu(x), (8,)), torch.randn(4, 8)))
    x = torch.randn(4, 8)
    recorder = {}

    class Recorder(torch.fx.Interpreter):
        def run_node(self, node):
            recorder[node] = super().run_node(node)
            return recorder[node]

    Recorder(gm).run(x)
    for node, value in recorder.items():
        if node.op == "call_function" and isinstance(value, torch.Tensor):
            fake = node.meta["val"]
            assert (fake.shape, fake.stride(), fake.dtype) == (value.shape, value.stride(), value.dtype), node
            assert node.meta["tensor_meta"].shape == value.shape


def test_metadata_is_that_of_the_op():
    def fn(x):
        with annotate({"mark": 1}):
            y = functional.gelu(x)
        return functional.silu(y)

    with preserve_node_meta():
        gm = traced(fn, torch.randn(4))
    node = node_named(gm, "gelu")
    node.meta.update(seq_nr=7, partitioner_tag="is_forward", recompute=1, stack_trace="here")
    before = set(gm.graph.nodes)
    decompose(gm)
    new = [node for node in gm.graph.nodes if node not in before]
    of_gelu = [node for node in new if str(node.meta["original_aten"]) == "aten.gelu.default"]
    assert len(new) > len(of_gelu) > 1
    for node in new:
        assert (node.meta.get("custom") == {"mark": 1}) == (node in of_gelu)
    assert all(node.meta["seq_nr"] == 7 and node.meta["recompute"] == 1 for node in of_gelu)
    assert all(node.meta["partitioner_tag"] == "is_forward" for node in of_gelu)
    assert all(node.meta["stack_trace"] == "here" for node in of_gelu)


def test_equal_ops_are_traced_once_and_have_storages_of_their_own():
    def fn(x, y):
        return functional.gelu(x), functional.gelu(y), functional.gelu(x.double())

    gm = traced(fn, torch.randn(4), torch.randn(4))
    table, dtypes = select_decomp_table(), []

    def gelu(value, **options):
        dtypes.append(value.dtype)
        return table[ATEN.gelu.default](value, **options)

    decompose(gm, {**table, ATEN.gelu.default: gelu})
    assert dtypes == [torch.float32, torch.float64]
    products = gm.graph.find_nodes(op="call_function", target=ATEN.mul.Tensor)
    storages = [node.meta["val"].untyped_storage()._cdata for node in products]
    assert len(set(storages)) == len(products)


def test_a_constant_is_part_of_what_makes_ops_equal():
    def fn(x):
        return functional.gelu(x), functional.gelu(x, approximate="tanh")

    x = torch.randn(4)
    torch.testing.assert_close(decompose(traced(fn, x))(x), fn(x))


def test_views_share_the_storage_of_what_they_view():
    table = {ATEN.mul.Tensor: lambda x, other: x.view(-1)[1:]}
    gm = decompose(traced(lambda x: x.sin() * 2, torch.randn(2, 2)), table)
    sin, last = node_named(gm, "sin"), gm.graph.output_node().args[0]
    assert last.meta["val"].untyped_storage()._cdata == sin.meta["val"].untyped_storage()._cdata


def test_symbolic_sizes_stay_symbolic():
    gm = traced(lambda x: functional.layer_norm(x, x.shape[1:]) * x.shape[0], torch.randn(4, 8), mode="symbolic")
    decompose(gm)
    assert "aten.native_layer_norm.default" not in ops(gm)
    for rows in (3, 6):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(gm(x), functional.layer_norm(x, (8,)) * rows)


def test_unused_results_do_not_exist():
    gm = decompose(traced(lambda x: ATEN.native_layer_norm(x, [8], None, None, 1e-5)[2], torch.randn(4, 8)))
    unused = [n for n in gm.graph.nodes if not n.users and n.op == "call_function"]
    assert unused == []


def test_a_constant_tensor_of_a_decomposition():
    table = {ATEN.sin.default: lambda x: x + torch.tensor([1.0, 2.0])}
    gm = decompose(traced(lambda x: x.sin().sin(), torch.randn(2)), table)
    torch.testing.assert_close(gm(torch.zeros(2)), torch.tensor([2.0, 4.0]))


def test_an_op_that_declines_to_be_decomposed_stays():
    table = {ATEN.sin.default: lambda x: NotImplemented, ATEN.cos.default: lambda x: x.sin()}
    gm = traced(lambda x: (x.sin(), x.cos()), torch.randn(2))
    sin = node_named(gm, "sin")
    assert ops(decompose(gm, table)) == {"aten.sin.default": 2}
    assert sin in set(gm.graph.nodes)


def test_several_results_and_one_that_is_none():
    table = {ATEN.convolution_backward.default: lambda g, x, w, *_: (g.neg(), None, g.sum((0, 2, 3)))}
    gradient, x, w = torch.randn(1, 2, 4, 4), torch.randn(1, 2, 4, 4), torch.randn(2, 2, 1, 1)

    def fn(gradient, x, w):
        return ATEN.convolution_backward(gradient, x, w, [2], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True] * 3)

    gm = decompose(traced(fn, gradient, x, w), table)
    assert "_operator.getitem" not in str(ops(gm))
    first, none, third = gm(gradient, x, w)
    assert none is None
    torch.testing.assert_close((first, third), (-gradient, gradient.sum((0, 2, 3))))


def test_a_graph_without_values_is_refused():
    graph = torch.fx.Graph()
    graph.output((graph.call_function(ATEN.gelu.default, (graph.placeholder("x"),)),))
    with pytest.raises(MissingValueError, match="no fake values"):
        decompose(torch.fx.GraphModule({}, graph))


def handmade(build, device="cpu"):
    """Return a graph ``gelu(x)``, what ``build(graph, gelu)`` adds, as AOTAutograd would name it."""
    with FakeTensorMode():
        value = torch.randn(4, device=device)
    graph = torch.fx.Graph()
    x = graph.placeholder("primals_1")
    state = graph.placeholder("fwd_rng_state_0")
    gelu = graph.call_function(ATEN.gelu.default, (x,))
    result = build(graph, gelu, state)
    for node in (x, gelu, result):
        node.meta["val"] = value
    graph.output((result,))
    return torch.fx.GraphModule({}, graph)


def test_graphsafe_run_with_rng_state_is_left_standing():
    def build(graph, gelu, state):
        return graph.call_function(
            graphsafe_run_with_rng_state, (ATEN.native_dropout.default, gelu, 0.5, True), {"rng_state": state}
        )

    gm = decompose(handmade(build, device="cuda"))
    counts = ops(gm)
    assert counts["graphsafe_run_with_rng_state"] == 1
    assert counts["aten.gelu.default"] == 0
    (node,) = [node for node in gm.graph.nodes if node.target is graphsafe_run_with_rng_state]
    assert node.args[0] is ATEN.native_dropout.default
    assert node.kwargs["rng_state"].name == "fwd_rng_state_0"


@pytest.mark.parametrize("target", [run_and_save_rng_state, with_effects], ids=str)
def test_ops_that_are_arguments_stay(target):
    def build(graph, gelu, state):
        first = (state,) if target is with_effects else ()
        whole = graph.call_function(target, (*first, ATEN.native_dropout.default, gelu, 0.5, True))
        return graph.call_function(operator.getitem, (whole, 1))

    gm = decompose(handmade(build))
    (node,) = [node for node in gm.graph.nodes if node.target is target]
    assert ATEN.native_dropout.default in node.args
    assert "aten.gelu.default" not in ops(gm)


def test_bodies_are_decomposed():
    def fn(x):
        return torch.cond(x.sum() > 0, lambda v: functional.gelu(v), lambda v: functional.silu(v), (x,))

    x = torch.randn(4)
    gm = decompose(traced(fn, x))
    bodies = [body for _, body in gm.named_children() if isinstance(body, torch.fx.GraphModule)]
    assert len(bodies) == 2
    for body in bodies:
        assert not {"aten.gelu.default", "aten.silu.default"} & set(ops(body))
    torch.testing.assert_close(gm(x), fn(x))
