"""Passes that leave wrong fake values behind, or none, or lose the annotation of a region."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import region
from pytest_regional.harness.graph_passes.recorder import GraphPassError

aten = torch.ops.aten


def program(x):
    with region("mlp"):
        return (x + 1).relu()


def inserted(graph, before, target, *args, like=None, **kwargs):
    with graph.inserting_before(before):
        node = graph.call_function(target, args, kwargs)
    node.meta = dict(like.meta) if like is not None else {}
    return node


def the(graph, target):
    (node,) = graph.find_nodes(op="call_function", target=target)
    return node


def negated_twice(graph, like):
    relu = the(graph, aten.relu.default)
    negated = inserted(graph, relu, aten.neg.default, relu.args[0], like=relu if like else None)
    relu.args = (inserted(graph, relu, aten.neg.default, negated, like=relu if like else None),)


def without_values(graph):
    negated_twice(graph, like=False)


def with_values(graph):
    negated_twice(graph, like=True)


def stale_strides(graph):
    """The value is column-major, and its metadata says row-major."""
    relu = the(graph, aten.relu.default)
    made = relu.args[0]
    turned = inserted(graph, relu, aten.t.default, made, like=made)
    turned.meta["val"] = made.meta["val"].t()
    copied = inserted(graph, relu, aten.clone.default, turned, like=turned, memory_format=torch.contiguous_format)
    copied.meta["val"] = turned.meta["val"].contiguous()
    relu.args = (inserted(graph, relu, aten.t.default, copied, like=made),)


def stale_dtype(graph):
    relu = the(graph, aten.relu.default)
    relu.args = (inserted(graph, relu, aten._to_copy.default, relu.args[0], like=relu, dtype=torch.float64),)


def stale_user(graph):
    """The operator changes and its value with it; what reads it does not."""
    add = the(graph, aten.add.Tensor)
    add.target, add.args = aten.cat.default, ([add.args[0], add.args[0]],)
    add.meta["val"] = torch.cat([add.meta["val"]] * 2)


def without_annotation(graph):
    relu = the(graph, aten.relu.default)
    clamped = inserted(graph, relu, aten.clamp_min.default, relu.args[0], 0, like=relu)
    del clamped.meta["custom"]
    relu.replace_all_uses_with(clamped)
    graph.erase_node(relu)


def with_annotation(graph):
    relu = the(graph, aten.relu.default)
    relu.replace_all_uses_with(inserted(graph, relu, aten.clamp_min.default, relu.args[0], 0, like=relu))
    graph.erase_node(relu)


def behind_the_region(graph):
    relu = the(graph, aten.relu.default)
    graph.output_node().args = (inserted(graph, graph.output_node(), aten.neg.default, relu, like=relu),)
    del graph.output_node().args[0].meta["custom"]


def in_the_middle_of_the_region(graph):
    with_values(graph)
    del the(graph, aten.relu.default).args[0].meta["custom"]


WRONG = {
    without_values: r"neg_default = aten\.neg\.default has no meta\['val'\]",
    stale_strides: r"t_default_1 = aten\.t\.default .*strides \(4, 1\), .*strides \(1, 3\)",
    stale_dtype: r"_to_copy_default = .*torch\.float32.*torch\.float64",
    stale_user: r"relu = .*\(3, 4\).*\(6, 4\)",
    without_annotation: r"clamp_min_default = .* replaces relu, .*annotat",
    in_the_middle_of_the_region: r"neg_default_1 = .* replaces add, .*annotat",
}


@pytest.mark.parametrize("dynamic", [False, True])
def test_wrong_metadata_is_noticed_and_right_metadata_passes(bare, dynamic):
    x = bare.randn(3, 4)
    for one, text in WRONG.items():
        with pytest.raises(GraphPassError, match=one.__name__ if dynamic else text):
            bare.run_pass(one, program, x, stage="graph", dynamic=dynamic)
    for one in (with_values, with_annotation, behind_the_region):
        assert bare.run_pass(one, program, x, stage="graph", dynamic=dynamic).changed, one.__name__


def test_a_graph_without_values_needs_none(bare):
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(aten.relu.default, (graph.call_function(aten.add.Tensor, (x, 1)),)))
    assert bare.run_pass(without_values, graph, bare.randn(3, 4)).changed
