"""Strides put back behind a compiled region: the values stay, and what does it belongs to no region."""

import operator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_regional._torch.inductor import InterpretedRegion
from pytest_regional.reference.compile_regions import restore_strides
from tests.reference.strided_views import LAYOUTS, laid_out, padded, row_major, same_strides, views


def called(expected, actual, told):
    """Return what is restored of ``actual``, the result of a region traced as ``expected``, and the graph."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    call = graph.call_function(lambda value: (value,), (x,))
    element = graph.call_function(operator.getitem, (call, 0))
    element.meta = {"val": expected, "custom": {"compile_with_inductor": {"inductor_region": "a"}}}
    graph.output(element)
    restored = restore_strides(call, told)
    return torch.fx.GraphModule({}, graph)(actual), restored, graph


def test_ops_that_restore_strides_are_in_no_region():
    expected = torch.arange(6.0).reshape(2, 3)

    found, restored, graph = called(expected, expected.t().contiguous().t(), [("1", "2")])

    assert restored == [0]
    assert torch.equal(found, expected)
    assert found.stride() == (3, 1)
    assert [node.target for node in graph.nodes if node.op == "call_function" and "custom" not in node.meta][1:]
    assert [node.target for node in graph.nodes if "custom" in node.meta] == [operator.getitem]


@given(data=st.data(), layout=st.sampled_from(LAYOUTS), told=st.booleans())
def test_any_value_gets_the_strides_it_was_traced_with(data, layout, told):
    """Gaps, overlaps, repetition, offsets, dimensions of size one, and all of them together."""
    expected = base = torch.arange(120.0).reshape(4, 5, 6)
    for view in data.draw(views(base)):
        expected = view(expected)
    actual = laid_out(expected, layout)

    found, _, _ = called(expected, actual, [tuple(map(str, actual.stride()))] if told else [])

    assert torch.equal(found, expected)
    assert same_strides(found, expected), (found.stride(), expected.stride())


@pytest.mark.parametrize("told", [True, False])
def test_a_dense_value_with_the_right_strides_is_not_copied(told):
    expected = torch.arange(6.0).reshape(2, 3).t()
    found, restored, _ = called(expected, expected, [("1", "3")] if told else [None])
    assert found.data_ptr() == expected.data_ptr()
    assert restored == ([] if told else [0])


def test_a_slice_has_gaps_again():
    """As a trained ``associative_scan`` saves them for a region of the backward, which is compiled for them."""
    expected = torch.arange(12.0).reshape(2, 6)[:, ::2][:1]
    found, _, _ = called(expected[:, :2], laid_out(expected[:, :2], row_major), [("2", "1")])
    assert found.stride()[1] == 2


def test_the_layouts_are_not_those_of_the_views():
    """Without anything restored the property above does not hold."""
    expected = torch.arange(120.0).reshape(4, 5, 6)
    assert not same_strides(laid_out(expected, padded), expected)
    assert not same_strides(laid_out(expected[:, ::2], row_major), expected[:, ::2])


def test_an_interpreted_region_has_the_strides_of_its_trace():
    """One without a tuple of outputs, which a backend of somebody else's may give, says nothing of them."""
    graph = torch.fx.Graph()
    made = graph.call_function(torch.neg, (graph.placeholder("x"),))
    made.meta = {"val": torch.empty(2, 3).t()}
    graph.output((made, 1))
    single = torch.fx.Graph()
    single.output(single.placeholder("x"))
    modules = [torch.fx.GraphModule({}, one) for one in (graph, single)]
    assert [InterpretedRegion(gm).output_strides for gm in modules] == [[("1", "3"), None], []]
