"""Canonicalization: which views go, and what has to stay as it was."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import annotate

from pytest_regional._torch.fx_graphs import region_mark
from pytest_regional._torch.operators import control_deps
from pytest_regional._torch.tracing import new_fake_mode
from pytest_regional.reference import add_control_deps
from pytest_regional.reference.passes import Canonicalization, canonicalize
from pytest_regional.reference.pipeline import PassPipeline
from pytest_regional.reference.pipeline.call import count_ops
from pytest_regional.testing import regional

aten = torch.ops.aten


def trace(function, *inputs, dynamic=False):
    mode = "symbolic" if dynamic else "fake"
    return make_fx(function, tracing_mode=mode)(*(inputs or (torch.randn(4, 6),)))


def ops(gm):
    return [str(node.target).split(".")[1] for node in gm.graph.nodes if node.op == "call_function"]


def canonical(function, *inputs, **options):
    """Trace, canonicalize, check that nothing that can be seen is another, and return the ops."""
    inputs = inputs or (torch.randn(4, 6),)
    gm = trace(function, *inputs, dynamic=options.pop("dynamic", False))
    before = seen(gm, inputs)
    removed = canonicalize(gm.graph, **options)
    gm.graph.lint()
    gm.recompile()
    assert seen(gm, inputs) == before
    left = ops(gm)
    assert canonicalize(gm.graph, **options) == 0
    assert ops(gm) == left
    canonical.removed = removed
    return left


def seen(gm, inputs):
    """Return what a caller can see: values, strides, offsets, who shares memory with whom, which objects are one."""
    inputs = [one.clone() for one in inputs]
    result = gm(*inputs)
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    everything = [*inputs, *results]
    storages = [one.untyped_storage()._cdata for one in everything]
    return (
        [(one.tolist(), one.stride(), one.storage_offset(), one.dtype) for one in everything],
        [storages.index(storage) for storage in storages],
        [[one is other for other in everything] for one in everything],
    )


# Views that change nothing.


@pytest.mark.parametrize(
    "view",
    [
        lambda y: y.detach(),
        lambda y: y.view(4, 6),
        lambda y: y.reshape(4, 6),
        lambda y: y.expand(4, 6),
        lambda y: y.permute(0, 1),
        lambda y: y[:],
        lambda y: y[0:],
        lambda y: aten.slice.Tensor(y, 1, 0, 9223372036854775807),
        lambda y: aten.alias.default(y),
        lambda y: aten._unsafe_view.default(y, [4, 6]),
        lambda y: y.as_strided((4, 6), (6, 1)),
        lambda y: aten._to_copy.default(y, dtype=torch.float32),
        lambda y: y.t().t(),
        lambda y: y.transpose(0, 1).t(),
        lambda y: y.permute(1, 0).transpose(-1, -2),
        lambda y: y.unsqueeze(0).squeeze(0),
        lambda y: y.view(24).view(4, 6),
        lambda y: y.view(2, 2, 6).permute(1, 0, 2).permute(1, 0, 2).view(4, 6),
        lambda y: y.detach().view(4, 6).detach().t().detach().t(),
        lambda y: y.view(torch.int32).view(torch.float32),
    ],
)
def test_a_view_that_changes_nothing_is_gone(view):
    assert canonical(lambda x: view(x.sin()).cos()) == ["sin", "cos"]
    assert canonical(lambda x: view(x).cos()) == ["cos"]
    assert canonical.removed > 0


@pytest.mark.parametrize(
    "view",
    [
        lambda y: y.t(),
        lambda y: y.view(24),
        lambda y: y[1:],
        lambda y: y.clone(),
        lambda y: aten._to_copy.default(y, dtype=torch.float64),
        lambda y: y[:, 0:3],
        lambda y: y.contiguous(),
        lambda y: y + 0,
        lambda y: y.expand(2, 4, 6),
    ],
)
def test_a_view_that_changes_something_stays(view):
    assert len(ops(trace(lambda x: view(x.sin()).cos()))) == len(canonical(lambda x: view(x.sin()).cos()))


def test_an_identity_by_sizes_that_is_none_by_strides():
    one_row = torch.randn(1, 6)
    left = canonical(lambda x: x.sin().as_strided((1, 6), (1, 1)).cos(), one_row)
    assert left == ["sin", "as_strided", "cos"]


def test_another_reading_of_the_same_bits_stays():
    assert canonical(lambda x: x.sin().view(torch.int32) + 1) == ["sin", "view", "add"]


def test_a_conjugation_stays():
    value = torch.randn(3, dtype=torch.complex64)
    assert "_conj" in canonical(lambda x: (x * 2).conj() * 3, value)


def test_sizes_that_are_symbols():
    x = torch.randn(5, 7)
    assert canonical(lambda x: x.sin().t().t().view(x.shape[0], -1).cos(), x, dynamic=True).count("t") == 0
    left = canonical(lambda x: x.sin().view(-1).view(x.shape[0], x.shape[1]).cos(), x, dynamic=True)
    assert "view" not in left


# Views of views.


def test_a_reshape_of_a_reshape_is_one():
    assert canonical(lambda x: x.sin().view(24).view(2, 12).view(3, 8).cos()) == ["sin", "view", "cos"]
    assert canonical.removed == 2


def test_a_permutation_of_a_permutation_is_one():
    x = torch.randn(2, 3, 4)
    assert canonical(lambda x: x.permute(1, 2, 0).transpose(0, 2).cos(), x) == ["permute", "cos"]
    gm = trace(lambda x: x.permute(1, 2, 0).transpose(0, 2).cos(), x)
    canonicalize(gm.graph)
    (permute,) = gm.graph.find_nodes(op="call_function", target=aten.permute.default)
    assert list(permute.args[1]) == [0, 2, 1]


def test_a_reshape_of_a_permuted_tensor_is_left_as_it_is():
    def program(x):
        return x.view(2, 2, 6).permute(0, 2, 1).view(2, 3, 2, 2).view(2, 6, 2).cos()

    assert canonical(program)[-1] == "cos"


def test_a_view_that_others_use_stays_for_them():
    left = canonical(lambda x: (lambda y: (y.view(4, 6).cos(), y.sin()))(x.view(24)))
    assert left == ["view", "cos", "sin"]


# What can be seen.


def test_results_keep_their_names_and_are_objects_of_their_own():
    def program(x):
        y = x.sin()
        return y, y.view(4, 6), x.view(4, 6), x.t().t()

    gm = trace(program)
    names = [node.name for node in gm.graph.output_node().all_input_nodes]
    assert canonical(program) == ["sin", "view", "view", "alias"]
    canonicalize(gm.graph)
    assert [node.name for node in gm.graph.output_node().all_input_nodes] == names


def test_a_clone_is_kept():
    assert canonical(lambda x: (x.clone().cos(), x.clone())) == ["clone", "cos", "clone"]


def test_a_copy_whose_memory_is_seen_is_kept():
    def copy(y):
        return aten._to_copy.default(y, dtype=torch.float32)

    assert "_to_copy" in canonical(lambda x: copy(x))
    assert "_to_copy" in canonical(lambda x: copy(x)[0])  # A result would be part of the input.
    assert "_to_copy" in canonical(lambda x: (lambda y: (y, copy(y).t()))(x.sin()))
    assert "_to_copy" in canonical(lambda x: copy(x).add_(1).cos())  # The input would be written.
    assert "_to_copy" in canonical(lambda x: (lambda y: (x.add_(1), y.cos())[1])(copy(x)))


def test_writes_through_views_are_seen():
    def program(x):
        y = x.sin()
        y.view(4, 6).t().t()[0].add_(1)
        return y.view(24).view(4, 6).cos()

    assert canonical(program) == ["sin", "select", "add_", "cos"]
    assert canonical(lambda x: x.view(4, 6).add_(1).cos()) == ["add_", "cos"]
    # What is written to comes back as it is: the view, and not the input.
    assert canonical(lambda x: x.view(4, 6).add_(1)) == ["view", "add_"]
    assert canonical(lambda x: x.view(4, 6).add_(1).mul_(2)) == ["view", "add_", "mul_"]


def test_a_write_to_an_input_at_the_end():
    def program(x):
        y = x.view(4, 6) + 1
        x.copy_(y.view(4, 6))
        return y.view(24)

    assert canonical(program) == ["add", "copy_", "view"]


def test_a_tensor_whose_shape_is_changed_in_place():
    def program(x):
        y = x.sin()
        v = y.view(4, 6)
        y.t_()
        return v.cos(), y.cos()

    assert canonical(program) == ["sin", "view", "t_", "cos", "cos"]


def test_nothing_is_judged_without_values():
    gm = trace(lambda x: x.view(4, 6).cos())
    for node in gm.graph.nodes:
        node.meta.pop("val", None)
    assert canonicalize(gm.graph) == 0


def test_no_guard_is_added():
    gm = trace(lambda x: x.sin().t().t().view(-1).view(x.shape[0], -1).cos(), torch.randn(5, 7), dynamic=True)
    shapes = next(node.meta["val"] for node in gm.graph.nodes).fake_mode.shape_env
    guards = len(shapes.guards)
    canonicalize(gm.graph)
    assert len(shapes.guards) == guards
    assert new_fake_mode() is not None


# Regions and order.


def marked(gm):
    return {node.name: region_mark(node)[1] for node in gm.graph.nodes if region_mark(node)[0]}


def test_views_of_two_regions_do_not_become_one():
    def program(x):
        with annotate({"compile_with_inductor": {"inductor_region": "a"}}):
            y = x.sin().view(24)
        with annotate({"compile_with_inductor": {"inductor_region": "b"}}):
            return y.view(2, 12).cos()

    with torch.fx.traceback.preserve_node_meta():
        gm = trace(program)
    marks = marked(gm)
    assert len({str(mark) for mark in marks.values()}) == 2
    assert canonicalize(gm.graph) == 0
    assert marked(gm) == marks


def test_a_pair_that_undoes_itself_across_a_border_is_gone_from_both():
    def program(x):
        with annotate({"compile_with_inductor": {"inductor_region": "a"}}):
            y = x.sin().t()
        with annotate({"compile_with_inductor": {"inductor_region": "b"}}):
            return y.t().cos()

    with torch.fx.traceback.preserve_node_meta():
        gm = trace(program)
    marks = marked(gm)
    assert canonicalize(gm.graph) == 2
    assert marked(gm) == {name: marks[name] for name in ("sin", "cos")}


def test_a_view_that_something_waits_for_stays():
    gm = trace(lambda x: (x.sin().view(4, 6).cos(), x.tan()))
    (view,) = gm.graph.find_nodes(op="call_function", target=aten.view.default)
    (tan,) = gm.graph.find_nodes(op="call_function", target=aten.tan.default)
    add_control_deps(gm.graph, {tan: [view]})
    (edge,) = gm.graph.find_nodes(op="call_function", target=control_deps())
    before = edge.args[0]
    canonicalize(gm.graph)
    gm.graph.lint()
    assert edge.args[0] == before


def test_bodies_are_done_too():
    def program(x):
        return torch.cond(x.sum() > 0, lambda x: x.t().t().sin(), lambda x: x.view(24).view(4, 6).cos(), (x,))

    gm = trace(program)
    assert canonicalize(gm.graph) == 4
    gm.recompile()
    assert {"aten.t.default", "aten.view.default"}.isdisjoint(count_ops(gm))
    x = torch.randn(4, 6)
    assert torch.equal(gm(x), program(x))


# Joint graphs, and the pass.


def test_a_joint_graph_keeps_its_detach():
    def program(x):
        return x.sin().detach().t().t().cos()

    cut = ops(trace(torch.Tensor.detach))  # torch 2.15 traces an alias.
    assert canonical(program, detach=False) == ["sin", *cut, "cos"]
    for graph, left in (("joint", ["sin", *cut, "cos"]), ("backward", ["sin", "cos"])):
        gm = trace(program)
        PassPipeline([Canonicalization(graphs=("joint", "backward"))]).run(gm, [], graph=graph)
        assert ops(gm) == left


def test_with_run_pass():
    def program(x, w):
        y = (x.t().t() @ w.detach()).view(-1).view(4, 8)
        return y.reshape(8, 4).t().t() @ w.view(8, 8)[:4], w[:]

    with regional("aot_eager", expects_regions=False) as r:
        x, w = r.randn(4, 8), r.randn(8, 8)
        result = r.run_pass(Canonicalization(), program, x, w, stage="graph")
        result.assert_count("aten.t", 0)
        result.assert_count("aten.detach", 0)
        result.assert_same_numerics(level="bitwise")
        result.assert_idempotent()
        result.assert_uuid_changes(Canonicalization(graphs=("forward",)), equal=Canonicalization())


def test_inside_inductor():
    def program(x, w):
        return (x.t().t() @ w.view(8, 8)).view(32).view(4, 8) @ w

    def clean(graph):
        canonicalize(graph)

    with regional("inductor") as r:
        x, w = r.randn(4, 8, requires_grad=True), r.randn(8, 8, requires_grad=True)
        result = r.run_pass(clean, program, x, w, stage="joint_pre")
        result.assert_same_numerics()
