"""Strides put back behind a compiled region: the values stay, and what does it belongs to no region."""

import operator

import torch

from pytest_regional.reference.restride import restore_strides


def test_what_puts_strides_back_is_in_no_region():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    call = graph.call_function(lambda value: (value.t().contiguous().t(),), (x,))
    element = graph.call_function(operator.getitem, (call, 0))
    expected = torch.arange(6.0).reshape(2, 3)
    element.meta = {"val": expected, "custom": {"compile_with_inductor": {"inductor_region": "a"}}}
    graph.output(element)

    assert restore_strides(call, [(1, 2)]) == [0]

    found = torch.fx.GraphModule({}, graph)(expected)
    assert torch.equal(found, expected)
    assert found.stride() == (3, 1)
    behind = list(graph.nodes)[list(graph.nodes).index(element) + 1 :]
    assert len(behind) > 1
    assert [node for node in behind if "custom" in node.meta] == []
