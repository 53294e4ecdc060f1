"""Graphs of tests as source, and made smaller."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.fx

from pytest_regional.bug_report._failing_call import (
    Reduced,
    ended_at,
    reduced,
    source_of_graph,
    sources_of_inputs,
    without,
)
from pytest_regional.harness.blame.divergence import NoGraphError


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
    with pytest.raises(NoGraphError, match="argument of type Object"):
        source_of_graph(graph)
    with pytest.raises(NoGraphError, match="of a module"):
        source_of_graph(torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU())).graph)


def own(x):
    return x


torch.fx.wrap("own")


def test_functions_of_the_users_are_refused():
    with pytest.raises(NoGraphError, match=r"own, which is not PyTorch's"):
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


def branched(x, y):
    def inner(x):
        return torch.cond(x.sum() > 100, lambda x: x + 1, lambda x: x * 2, (x,))

    return torch.cond(x.sum() > 0, lambda x, y: inner(x) - y, lambda x, y: x.cos() * y, (x.sin(), y)).exp()


def looped(x, y):
    return torch.while_loop(lambda n, x: n < 3, lambda n, x: (n + 1, x.sin() + y), (torch.tensor(0), x))


BODIES = {"cond": branched, "while_loop": looped}


def captured(function):
    """Return the graph that Dynamo makes."""
    seen = []

    def capture(gm, inputs):
        seen.append(gm)
        return gm

    torch.compiler.reset()
    torch.compile(function, backend=capture, fullgraph=True)(*given())
    return seen[0]


@pytest.mark.parametrize("name", BODIES)
def test_bodies_of_operators_are_functions(name):
    module = captured(BODIES[name])
    own = [node.target for node in module.graph.nodes if node.op == "get_attr"]

    source = source_of_graph(module.graph)

    made = executed(source)
    torch.compiler.reset()
    for run in (made, torch.compile(made, backend="aot_eager", fullgraph=True)):
        expected = BODIES[name](*given())
        for one, other in zip(run(*given()), expected if isinstance(expected, tuple) else (expected,), strict=True):
            torch.testing.assert_close(one, other)
    assert all(f"def {name}_(" in source for name in own)


def test_other_operators_with_bodies_are_refused():
    def scanned(x, y):
        return torch._higher_order_ops.scan(lambda carry, one: (carry + one, carry * one), x[0], y)

    with pytest.raises(NoGraphError, match=r"higher_order\.scan, whose bodies cannot be given"):
        source_of_graph(captured(scanned).graph)


def test_a_graph_with_bodies_is_reduced():
    module = captured(branched)

    small = reduced(module, given(), lambda module, inputs: "cond" in operators(module), seconds=60)

    assert operators(small.module) == ["cond", "getitem"]
    source = source_of_graph(small.module.graph)
    assert source.count("def cond_") == 4
    assert executed(source)(*small.inputs)[0].shape == (2, 3)


def test_a_tensor_that_a_body_holds_is_refused():
    module = captured(branched)
    body = next(node for node in module.graph.nodes if node.op == "get_attr")
    delattr(module, body.target)
    setattr(module, body.target, torch.ones(3))

    with pytest.raises(NoGraphError, match=f"the graph holds {body.target}, a Tensor"):
        source_of_graph(module.graph)


def operators(module):
    return [node.name for node in module.graph.nodes if node.op.startswith("call")]


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
