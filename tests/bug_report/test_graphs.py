"""Graphs of tests as source, and made smaller."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.fx

from pytest_regional.bug_report.graph_reduction import Reduced, ended_at, reduced, without
from pytest_regional.bug_report.graph_source import UnwritableGraphError, source_of_graph, sources_of_inputs


def program(x, y):
    a = torch.nn.functional.gelu(x) + 1
    b = a.floor().view(3, 2)
    c = b[0] * 2 ** b.sum()
    y.mul_(2)
    return c, torch.cat([y, y], dim=-1), x[:, 1:2].to(torch.float64)


def traced(function=program):
    return torch.fx.symbolic_trace(function)


def given():
    torch.manual_seed(0)
    return torch.randn(2, 3), torch.ones(2, 3)


def executed(source, name="program"):
    names = {}
    exec(source, names)
    return names[name]


def test_the_source_computes_what_the_graph_computes():
    source = source_of_graph(traced().graph)

    for one, other in zip(executed(source)(*given()), program(*given()), strict=True):
        assert torch.equal(one, other)
    assert "torch.nn.functional.gelu" in source


def test_annotations_are_written_around_their_operators():
    module = traced()
    for node in module.graph.nodes:
        if node.name in ("floor", "view"):
            node.meta["custom"] = {"compile_with_inductor": "a"}

    source = source_of_graph(module.graph)

    block = source.partition("with annotate({'compile_with_inductor': 'a'}):\n")[2]
    assert [line.strip().partition(" ")[0] for line in block.splitlines() if line.startswith(" " * 8)] == [
        "floor_",
        "view_",
    ]
    assert "annotate" not in source_of_graph(module.graph, annotated=False)


def test_what_no_source_names_is_refused():
    class Object:
        pass

    graph = traced().graph
    next(node for node in graph.nodes if node.op == "call_method").args = (Object(),)
    with pytest.raises(UnwritableGraphError, match="argument of type Object"):
        source_of_graph(graph)
    with pytest.raises(UnwritableGraphError, match="of a module"):
        source_of_graph(torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU())).graph)


def own(x):
    return x


torch.fx.wrap("own")


def test_functions_of_the_users_are_refused():
    with pytest.raises(UnwritableGraphError, match=r"own, which is not PyTorch's"):
        source_of_graph(traced(lambda x: own(x)).graph)


INPUTS = {
    "matrix": lambda: torch.randn(2, 3),
    "transposed": lambda: torch.randn(3, 2).t(),
    "with gradient": lambda: torch.randn(3, dtype=torch.float64).requires_grad_(),
    "integers": lambda: torch.arange(6).reshape(2, 3),
    "truths": lambda: torch.tensor([True, False]),
    "not finite": lambda: torch.tensor([float("inf"), float("nan"), -0.0]),
    "large, with gaps": lambda: torch.randn(64, 64)[::2, ::3],
    "empty": lambda: torch.zeros(0, 2),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_are_made_like_those_of_the_test(name):
    value = INPUTS[name]()
    for source in sources_of_inputs([value]):
        (made,) = executed(f"import torch\n{source}", "inputs")()
        assert (made.shape, made.dtype, made.stride()) == (value.shape, value.dtype, value.stride())
        assert made.requires_grad == value.requires_grad
    if value.numel() <= 24:
        sources = list(sources_of_inputs([value]))
        made = [executed(f"import torch\n{source}", "inputs")()[0] for source in sources]
        assert any(torch.equal(one.nan_to_num(7), value.nan_to_num(7)) for one in made)


def operators(module):
    return [node.name for node in module.graph.nodes if node.op not in ("placeholder", "output")]


def test_a_graph_is_reduced_to_the_operator_that_fails():
    asked = []

    def fails(module, inputs):
        asked.append(operators(module))
        module(*(value.clone() for value in inputs))
        return any(node.target == "floor" for node in module.graph.nodes)

    small = reduced(traced(), given(), fails, seconds=60)

    assert operators(small.module) == ["floor"]
    assert len(small.inputs) == 1
    assert len(asked) < 40


def test_nothing_is_reduced_that_then_does_not_fail():
    whole = traced()
    assert operators(reduced(whole, given(), lambda module, inputs: False, seconds=60).module) == operators(whole)


def test_writes_stay():
    """Nothing reads the result of ``mul_``; what it writes is read."""
    small = without(Reduced(traced(), given()), 0, 3)

    assert "mul_" in operators(small.module)
    assert torch.equal(small.module(*small.inputs)[1], program(*given())[1])


def test_an_end_is_a_value_on_the_way():
    small = ended_at(Reduced(traced(), given()), 2)
    (value,) = small.module(*small.inputs)

    assert operators(small.module) == ["gelu", "add"]
    assert torch.equal(value, torch.nn.functional.gelu(given()[0]) + 1)
    assert operator.add in {node.target for node in small.module.graph.nodes}
