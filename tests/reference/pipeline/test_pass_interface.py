"""What a pass may not change unseen: the inputs and outputs of its graph."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pytest_regional.reference.pipeline import InvalidPassError, Pass, PassFailedError, PassPipeline, graph_pass

from .pass_examples import aten, declared, traced


def two(x, w):
    return (x @ w).relu(), x.sin(), None


def outputs(gm):
    return list(gm.graph.output_node().args[0])


def set_outputs(gm, values):
    gm.graph.output_node().args = (type(gm.graph.output_node().args[0])(values),)


def new_node(gm, target, *args):
    with gm.graph.inserting_before(gm.graph.output_node()):
        return gm.graph.call_function(target, args)


def one_more_output(gm):
    set_outputs(gm, [*outputs(gm), outputs(gm)[0]])


def one_output_less(gm):
    set_outputs(gm, outputs(gm)[:-1])


def an_output_gone(gm):
    set_outputs(gm, [None, *outputs(gm)[1:]])


def an_output_come(gm):
    set_outputs(gm, [*outputs(gm)[:2], outputs(gm)[0]])


def another_shape(gm):
    set_outputs(gm, [new_node(gm, aten.sum.dim_IntList, outputs(gm)[0], [0]), *outputs(gm)[1:]])


def another_dtype(gm):
    set_outputs(gm, [outputs(gm)[0], new_node(gm, aten.to.dtype, outputs(gm)[1], torch.float64), None])


def another_device(gm):
    moved = new_node(gm, aten.sin.default, outputs(gm)[1])
    moved.meta["val"] = outputs(gm)[1].meta["val"].to("meta")
    set_outputs(gm, [outputs(gm)[0], moved, None])


def a_number_for_a_tensor(gm):
    set_outputs(gm, [outputs(gm)[0], 3, None])


def one_more_input(gm):
    with gm.graph.inserting_before(next(iter(gm.graph.nodes))):
        gm.graph.placeholder("more")


def inputs_turned(gm):
    first, second = gm.graph.find_nodes(op="placeholder")
    second.append(first)


CHANGES = {
    one_more_output: "returns 4 values and returned 3",
    one_output_less: "returns 2 values and returned 3",
    an_output_gone: "output 0 is None and was a tensor",
    an_output_come: "output 2 is a tensor and was None",
    another_shape: r"output 0 has shape \(8,\) and had \(4, 8\)",
    another_dtype: "output 1 has dtype torch.float64 and had torch.float32",
    another_device: "output 1 has device meta and had cpu",
    a_number_for_a_tensor: "output 1 is no tensor and was a tensor",
    one_more_input: "takes 3 inputs and took 2",
    inputs_turned: r"takes its inputs in another order: 'w_1', 'x_1'; it was 'x_1', 'w_1'",
}


@pytest.mark.parametrize("changing", CHANGES, ids=lambda function: function.__name__)
def test_a_change_is_refused_with_the_name_of_the_pass(changing):
    gm = traced(two)
    where = f"^pass '{changing.__name__}', on the backward graph, changed what the graph takes or returns: "
    with pytest.raises(PassFailedError, match=where + CHANGES[changing]) as caught:
        PassPipeline([changing, declared("late")]).run(gm, [], graph="backward")
    assert (caught.value.pass_name, caught.value.graph) == (changing.__name__, "backward")
    assert "changes_interface = True" in str(caught.value)


@pytest.mark.parametrize("changing", CHANGES, ids=lambda function: function.__name__)
def test_a_pass_may_say_that_it_changes_them(changing):
    gm = traced(two)
    PassPipeline([graph_pass(changes_interface=True)(changing)]).run(gm, [])

    class Changing(Pass):
        changes_interface = True

        def __call__(self, gm, example_inputs=()):
            changing(gm)

    inner = PassPipeline([Changing()], name="inner")
    PassPipeline([inner]).run(traced(two), [])
    assert inner.changes_interface
    assert not PassPipeline([declared("a")]).changes_interface


def test_the_next_pass_is_compared_with_what_the_last_one_left():
    allowed = graph_pass(changes_interface=True)(one_output_less)
    PassPipeline([allowed, declared("late")]).run(traced(two), [])


def test_passes_that_keep_the_interface():
    def strides(gm):
        transposed = new_node(gm, aten.clone.default, outputs(gm)[0])
        transposed.meta["val"] = outputs(gm)[0].meta["val"].t().contiguous().t()
        set_outputs(gm, [transposed, *outputs(gm)[1:]])

    def another_module(gm):
        return make_fx(gm, tracing_mode="fake")(torch.randn(4, 8), torch.randn(8, 8))

    def list_of_outputs(gm):
        gm.graph.output_node().args = (tuple(outputs(gm)),)

    PassPipeline([strides, another_module, list_of_outputs]).run(traced(two), [])


def test_sizes_that_are_symbols_are_compared_as_they_are_now():
    def halves(x):
        return x[: x.shape[0] // 2], x.new_zeros(x.shape[0])

    def again(gm):
        first, second = outputs(gm)
        set_outputs(gm, [new_node(gm, aten.clone.default, first), new_node(gm, aten.neg.default, second)])

    def turned(gm):
        set_outputs(gm, outputs(gm)[::-1])

    def gm():
        return make_fx(halves, tracing_mode="symbolic")(torch.randn(6))

    PassPipeline([again]).run(gm(), [])
    with pytest.raises(PassFailedError, match=r"output 0 has shape \((s\d+),\) and had \(\(\1//2\),\)"):
        PassPipeline([turned]).run(gm(), [])


def test_sizes_that_only_data_tell_have_no_name_to_compare():
    def nonzero_again(gm):
        set_outputs(gm, [new_node(gm, aten.nonzero.default, outputs(gm)[0].args[0])])

    def gm():
        return make_fx(lambda x: (aten.nonzero(x),), tracing_mode="symbolic")(torch.randn(6))

    before = gm()
    PassPipeline([nonzero_again]).run(before, [])
    assert outputs(before)[0].meta["val"].shape[1] == 1


def test_without_values_only_numbers_are_compared():
    gm = torch.fx.symbolic_trace(lambda x, w: (x @ w, x.sin(), None))
    PassPipeline([another_shape_untraced]).run(gm, [])
    with pytest.raises(PassFailedError, match="returns 4 values"):
        PassPipeline([one_more_output]).run(gm, [])


def another_shape_untraced(gm):
    set_outputs(gm, [new_node(gm, torch.sum, outputs(gm)[0]), *outputs(gm)[1:]])


def test_a_single_value_is_no_tuple_of_one():
    gm = traced(lambda x: x.sin(), torch.randn(4))

    def wrapped(gm):
        output = gm.graph.output_node()
        output.args = (tuple(output.args),)

    with pytest.raises(PassFailedError, match=r"returns values as \[0\] and returned them as the only value"):
        PassPipeline([wrapped]).run(gm, [])


def test_a_declaration_that_is_neither_true_nor_false():
    with pytest.raises(InvalidPassError, match="changes_interface='yes' of the pass 'a' is neither"):
        PassPipeline([declared("a", changes_interface="yes")])
