"""Counting and replacing: how operators are named, and what an assertion says that does not hold."""

from __future__ import annotations

import operator

import pytest
import torch

from pytest_regional._torch.operators import control_deps
from pytest_regional.harness.codegen import OpError, OpPattern
from pytest_regional.harness.graph_passes.recorder import GraphAssertionError
from pytest_regional.testing import at_least, at_most

from .passes import aten, nothing, order_after, products, second_operand_twice, sums, swap


@pytest.fixture
def summed(bare):
    return bare.run_pass(
        swap(aten.mul.Tensor, aten.sub.Tensor), sums, bare.randn(4, 4), bare.randn(4, 4), stage="graph"
    )


@pytest.mark.parametrize(
    "op",
    ["aten.add", "aten.add.Tensor", "add", "add.Tensor", "torch.ops.aten.add", "torch.ops.aten.add.Tensor", aten.add,
     aten.add.Tensor, "aten.add#1"],
)  # fmt: skip
def test_names_of_an_aten_operator(summed, op):
    summed.assert_count(op, 1)
    with pytest.raises(GraphAssertionError, match=rf"{OpPattern.of(op).text}' occurs once, not twice"):
        summed.assert_count(op, 2)


def test_another_overload_is_another_operator(summed):
    summed.assert_count("aten.add.Scalar", 0)


class Written(torch.nn.Module):
    """A function, a builtin, an operator, a method and a module, as they stand in a graph before AOTAutograd."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = torch.nn.functional.silu(torch.sin(x)) + 1
        return self.inner(y.view(4, 4))


@pytest.mark.parametrize(
    "op",
    [
        "torch.nn.functional.silu", "silu", torch.nn.functional.silu, "torch.sin", "sin", torch.sin, "operator.add",
        operator.add, ".view", "Tensor.view", torch.Tensor.view, "Linear", "torch.nn.Linear", torch.nn.Linear, "inner",
    ],
)  # fmt: skip
def test_names_in_a_graph_before_autograd(bare, op):
    result = bare.run_pass(nothing, torch.fx.symbolic_trace(Written()))
    result.assert_count(op, 1)


@pytest.mark.parametrize("op", ["torch.nn.functional.gelu", torch.cos, ".reshape", "Conv2d", "aten.mm", operator.mul])
def test_operators_of_torch_may_be_asserted_as_absent(bare, op):
    result = bare.run_pass(nothing, torch.fx.symbolic_trace(Written()))
    result.assert_count(op, 0)
    with pytest.raises(GraphAssertionError, match=r"occurs 0 times, not once"):
        result.assert_count(op, 1)


@pytest.mark.parametrize(
    "op",
    [
        "addd",
        "cond>aten.addd",
        "cont>aten.add",
        "aten.addd",
        "aten.add.Tensr",
        "mylib.op",
        ".viiew",
        "Liner",
        "torch.nn.functional.sil",
        "add!",
    ],
)
def test_a_misspelt_operator_is_an_error_that_lists_what_is_there(summed, op):
    with pytest.raises(OpError, match=r"unknown operator .*Known: .*aten\.add\.Tensor.*could not fail"):
        summed.assert_count(op, 0)


def test_patterns_without_an_operator(summed):
    with pytest.raises(OpError, match="names no operator"):
        summed.assert_count(3, 0)
    with pytest.raises(OpError, match="from 1, such as"):
        summed.assert_count("aten.add#last", 0)
    with pytest.raises(OpError, match="from 1, such as"):
        summed.assert_count("aten.add#", 0)
    with pytest.raises(OpError, match="names no operator"):
        summed.assert_count(">aten.add", 0)


def test_a_name_that_only_the_graph_has(bare):
    """A local function is unknown to torch; that it was there before makes its absence a fact."""

    def mine(x):
        return x

    graph = torch.fx.Graph()
    graph.output(graph.call_function(mine, (graph.placeholder("x"),)))
    result = bare.run_pass(swap(mine, torch.sin), graph)
    result.assert_count("mine", 0)
    result.assert_replaced(before="mine", after="torch.sin")


def test_ranges(summed):
    summed.assert_count("aten.add", at_most(1))
    with pytest.raises(GraphAssertionError, match="occurs once, not at least 2 times"):
        summed.assert_count("aten.add", at_least(2))


def test_replaced(summed):
    summed.assert_replaced(before="aten.mul", after="aten.sub")
    summed.assert_replaced(before=["aten.mul"], after=[aten.sub])


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("aten.div", "aten.sub", "there was no 'aten.div' to replace"),
        ("aten.add", "aten.sub", "'aten.add' is left once"),
        (["aten.mul", "aten.add"], "aten.sub", "'aten.add' is left once"),
        ("aten.mul", "aten.div", "no 'aten.div' came: 0 times before, 0 times after"),
        ("aten.mul", ["aten.sub", "aten.mm"], "no 'aten.mm' came: once before, once after"),
    ],
)
def test_not_replaced(summed, before, after, message):
    with pytest.raises(GraphAssertionError, match=message):
        summed.assert_replaced(before=before, after=after)


def test_a_failure_shows_both_graphs_with_what_matters_marked(summed):
    with pytest.raises(GraphAssertionError) as failure:
        summed.assert_count("aten.add", 0)
    lines = [" ".join(line.partition("#")[0].split()) for line in str(failure.value).splitlines()]
    assert lines == [
        "after swapping (stage 'graph'): 'aten.add' occurs once, not 0 times",
        "the graph:",
        "x_1 = input",
        "y_1 = input",
        "> add = aten.add.Tensor(x_1, y_1)",
        "mm = aten.mm.default(x_1, y_1)",
        "- mul = aten.mul.Tensor(x_1, y_1)",
        "+ mul = aten.sub.Tensor(x_1, y_1)",
        "cat = aten.cat.default([add, mm, mul])",
        "return cat",
    ]


def test_a_failure_on_a_long_graph_leaves_out_what_did_not_change(bare):
    def long(x):
        for _ in range(100):
            x = x.sin()
        return x.cos()

    result = bare.run_pass(swap(aten.cos.default, aten.tan.default), long, bare.randn(2), stage="graph")
    with pytest.raises(GraphAssertionError) as failure:
        result.assert_count("aten.cos", 1)
    text = str(failure.value)
    assert "... 93 unchanged" in text
    assert len(text.splitlines()) < 20


def test_operators_inside_control_deps_count(bare):
    result = bare.run_pass(
        order_after(aten.mul.Tensor, aten.mm.default), sums, bare.randn(4, 4), bare.randn(4, 4), stage="graph"
    )
    for op in ("aten.mul", "control_deps", control_deps()):
        result.assert_count(op, 1)
    with pytest.raises(GraphAssertionError) as failure:
        result.assert_count("aten.mul", 0)
    (marked,) = [line for line in str(failure.value).splitlines() if line.startswith(">")]
    assert marked.startswith("> +     mul_tensor = aten.mul.Tensor(")


def test_operators_inside_the_branches_of_cond_count(bare, inductor):
    def branching(x):
        return torch.cond(x.sum() > 0, lambda x: torch.addmm(x, x, x), lambda x: x @ x.t(), (x,))

    def no_bias(graph):
        for node in graph.find_nodes(op="call_function", target=aten.addmm.default):
            node.target, node.args = aten.mm.default, node.args[1:]

    x = bare.randn(4, 4)
    traced = bare.run_pass(nothing, branching, x, stage="graph")
    traced.assert_count("aten.addmm", 1)
    traced.assert_count("cond", 1)
    traced.assert_count("cond>addmm", 1)
    traced.assert_count("cond>aten.sum", 0)
    traced.assert_order("aten.sum", "cond>aten.mm")
    compiled = inductor.run_pass(no_bias, branching, x)
    # Inductor runs the pass on each branch and then on the whole; here the branches are parts of the whole.
    assert [(one.kind, one.region) for one in compiled.graphs] == [("inference", None)]
    compiled.assert_replaced(before="aten.addmm", after="aten.mm")
    compiled.assert_count("aten.mm", 2)


def test_the_operator_that_auto_functionalized_runs_counts(bare):
    with torch.library._scoped_library("run_pass_test", "DEF") as library:
        library.define("double_(Tensor(a!) x) -> ()")
        library.impl("double_", lambda x: x.mul_(2), "CompositeExplicitAutograd")
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        wrapper = torch._higher_order_ops.auto_functionalize.auto_functionalized
        graph.output(graph.call_function(wrapper, (torch.ops.run_pass_test.double_.default,), {"x": x}))
        result = bare.run_pass(nothing, graph)
        result.assert_count("run_pass_test.double_", 1)
        result.assert_count("auto_functionalized", 1)


def test_graphs_are_snapshots_that_run(bare):
    x, w = bare.randn(4, 4), bare.randn(4, 4)
    graph = torch.fx.symbolic_trace(lambda x, w: (x @ w) @ w).graph
    result = bare.run_pass(swap(operator.matmul, operator.add), graph)
    torch.testing.assert_close(result.before(x, w), x @ w @ w)
    torch.testing.assert_close(result.after(x, w), x + w + w)
    names = [node.name for node in graph.nodes]
    assert [node.name for node in result.after.nodes] == [node.name for node in result.before.nodes] == names
    # The graph that was given is the one that the pass ran on.
    assert next(iter(graph.find_nodes(op="call_function", target=operator.add))) in graph.nodes


def test_a_pass_that_writes_to_weights_does_not_reach_the_graph_before(bare):
    def scale(gm: torch.fx.GraphModule):
        with torch.no_grad():
            gm.inner.weight.mul_(2)

    module = Written()
    result = bare.run_pass(scale, torch.fx.symbolic_trace(module), bare.randn(4, 4))
    torch.testing.assert_close(result.before.inner.weight * 2, result.after.inner.weight)
    with pytest.raises(AssertionError, match="blame: the pass scale"):
        result.assert_same_numerics()


def test_region_annotations_arrive_in_a_traced_graph(bare):
    result = bare.run_pass(second_operand_twice, products, bare.randn(4, 4), bare.randn(4, 4), stage="graph")
    (first, _) = result.before.graph.find_nodes(op="call_function", target=aten.mm.default)
    assert first.meta["custom"]["compile_with_inductor"] == {"inductor_region": "products"}


def test_a_body_under_two_names_is_one(bare):
    inner = torch.fx.symbolic_trace(lambda x: x.sin())
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_module("second", (graph.call_module("first", (x,)),)))
    module = torch.fx.GraphModule({"first": inner, "second": inner}, graph)
    result = bare.run_pass(nothing, module, bare.randn(3))
    result.assert_count(".sin", 1)
    assert result.before.first is result.before.second


def test_order_of_many_operators_is_found_fast(bare):
    """300 against 300 operators of a chain: 90,000 pairs, none of which walks the graph anew."""
    import time

    def chain(x):
        for _ in range(300):
            x = x.sin()
        for _ in range(300):
            x = x.cos()
        return x

    result = bare.run_pass(nothing, torch.fx.symbolic_trace(chain))
    start = time.process_time()
    result.assert_order(".sin", ".cos", pinned=True)
    assert time.process_time() - start < 5
