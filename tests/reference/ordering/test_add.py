"""``add_control_deps``: who waits for whom, what that costs, and what is refused."""

from __future__ import annotations

import operator
import re

import pytest
import torch
import torch.fx

from pytest_regional.reference import OrderingCycleError, OrderingError, add_control_deps, remove_control_deps
from pytest_regional.reference.ordering.edges import body_of, dependencies_of, is_control_deps
from tests.reference.ordering.graphs import aten, described, node, traced

X = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))


def independent(x):
    return x + 1, x @ x, x * 2


def assert_same_values(gm, function, *inputs):
    gm.graph.lint()
    gm.recompile()
    torch.testing.assert_close(gm(*inputs), function(*inputs), rtol=0, atol=0)


def test_a_node_waits_and_keeps_name_users_and_values():
    gm = traced(independent, X)
    mul, mm = node(gm, "mul"), node(gm, "mm")
    report = add_control_deps(gm.graph, {mul: [mm]})
    assert report.added == ((mm, mul),)
    assert report.implied == report.moved == ()
    assert is_control_deps(mul)
    assert mul.name == "mul"
    assert dependencies_of(mul) == (mm,)
    assert [inner.target for inner in body_of(mul).graph.nodes if inner.op == "call_function"] == [aten.mul.Tensor]
    assert_same_values(gm, independent, X)


def test_a_chain_waits_link_by_link_and_is_not_nested():
    gm = traced(independent, X)
    add, mm, mul = (node(gm, name) for name in ("add", "mm", "mul"))
    add_control_deps(gm.graph, {mm: [add]})
    report = add_control_deps(gm.graph, {mul: [mm], mm: [add]})
    assert report.implied == ((add, mm),)
    assert dependencies_of(mm) == (add,)
    assert dependencies_of(mul) == (mm,)
    assert not any(is_control_deps(inner) for inner in body_of(mm).graph.nodes)
    assert_same_values(gm, independent, X)


def test_an_edge_through_a_dead_node_implies_nothing():
    def dead_middle(x):
        a, dead, c = x + 1, x @ x, x * 2
        del dead
        return a, c

    gm = traced(dead_middle, X)
    add, mm, mul = (node(gm, name) for name in ("add", "mm", "mul"))
    assert not mm.users
    report = add_control_deps(gm.graph, {mm: [add], mul: [mm, add]})
    assert set(report.added) == {(add, mm), (mm, mul), (add, mul)}


@pytest.mark.parametrize("kind", ["placeholder", "get_attr"])
def test_inputs_and_attributes_need_no_waiting(kind):
    gm = traced(independent, X)
    gm.register_buffer("constant", X)
    with gm.graph.inserting_before(node(gm, "add")):
        gm.graph.get_attr("constant")
    there = gm.graph.find_nodes(op=kind)[0]
    report = add_control_deps(gm.graph, {node(gm, "mul"): [there]})
    assert report.added == ()
    assert not any(is_control_deps(n) for n in gm.graph.nodes)


def test_a_cycle_of_requests_alone_is_named():
    gm = traced(independent, X)
    add, mm, mul = (node(gm, name) for name in ("add", "mm", "mul"))
    with pytest.raises(OrderingCycleError, match="has a cycle") as error:
        add_control_deps(gm.graph, {mm: [add], mul: [mm], add: [mul]})
    assert set(error.value.cycle) == {"add", "mm", "mul"}


def test_a_cycle_through_an_effect_says_so():
    def draws(x):
        return torch.rand_like(x), torch.rand_like(x)

    gm = traced(draws, X)
    first, second = (n for n in gm.graph.nodes if n.op == "call_function" and "rand" in n.name)
    with pytest.raises(OrderingCycleError, match=r"\(effect\)"):
        add_control_deps(gm.graph, {first: [second]})


def refused(asked):
    gm = traced(independent, X)
    before = described(gm)
    with pytest.raises(OrderingError) as error:
        add_control_deps(gm.graph, asked(gm))
    assert described(gm) == before
    return str(error.value)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (lambda gm: {node(gm, "mul"): []}, "'mul' has no dependencies"),
        (lambda gm: {node(gm, "mul"): [node(gm, "mm"), node(gm, "mm")]}, "'mul' has the dependency 'mm' twice"),
        (lambda gm: {gm.graph.find_nodes(op="placeholder")[0]: [node(gm, "mm")]}, r"\(placeholder\) cannot wait"),
        (lambda gm: {gm.graph.output_node(): [node(gm, "mm")]}, r"\(output\) cannot wait"),
        (lambda gm: {node(gm, "mul"): [gm.graph.output_node()]}, "cannot run after the output"),
        (lambda gm: {node(gm, "mul"): node(gm, "mm")}, "must be a list of nodes"),
        (lambda gm: {node(gm, "mul"): ["mm"]}, "'mm', a dependency of 'mul', is not a node"),
        (lambda gm: {"mul": [node(gm, "mm")]}, "'mul', the waiting node, is not a node"),
        (lambda gm: {node(traced(independent, X), "mul"): [node(gm, "mm")]}, "is not in this graph"),
        (lambda gm: {node(gm, "mul"): [node(traced(independent, X), "mm")]}, "is not in this graph"),
    ],
)
def test_what_is_refused(asked, message):
    assert re.search(message, refused(asked))


def test_an_erased_node_is_refused():
    gm = traced(lambda x: (x + 1, (x @ x, x * 2)[1]), X)
    mm = node(gm, "mm")
    gm.graph.erase_node(mm)
    with pytest.raises(OrderingError, match="it was erased"):
        add_control_deps(gm.graph, {node(gm, "mul"): [mm]})


def test_a_graph_without_module_is_refused():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    first, second = graph.call_function(aten.sin.default, (x,)), graph.call_function(aten.cos.default, (x,))
    graph.output((first, second))
    with pytest.raises(OrderingError, match="no GraphModule"):
        add_control_deps(graph, {second: [first]})


def nested_arguments(x):
    products = x @ x
    joined = torch.cat([x, x + 1, x], dim=-1)
    indexed = torch.ops.aten.index.Tensor(x, [None, torch.tensor([0, 1])])
    return products, joined, indexed, torch.full((2,), 3.0, dtype=torch.float64)


@pytest.mark.parametrize("name", ["cat", "index", "full"])
def test_arguments_nested_in_lists_and_keywords(name):
    gm = traced(nested_arguments, X)
    before = described(gm)
    add_control_deps(gm.graph, {node(gm, name): [node(gm, "mm")]})
    assert is_control_deps(node(gm, name))
    assert_same_values(gm, nested_arguments, X)
    remove_control_deps(gm.graph)
    assert described(gm) == before


def test_an_op_with_several_results_waits():
    gm = traced(lambda x: (x @ x, *torch.ops.aten.topk.default(x, 2)), X)
    add_control_deps(gm.graph, {node(gm, "getitem"): [node(gm, "mm")]})
    assert is_control_deps(node(gm, "topk"))
    assert not is_control_deps(node(gm, "getitem"))
    assert_same_values(gm, lambda x: (x @ x, *torch.ops.aten.topk.default(x, 2)), X)


def test_an_op_with_several_results_is_waited_for_by_a_value():
    gm = traced(lambda x: (*torch.ops.aten.topk.default(x, 2), x @ x), X)
    before = described(gm)
    report = add_control_deps(gm.graph, {node(gm, "mm"): [node(gm, "topk")]})
    assert [(a.name, b.name) for a, b in report.added] == [("topk", "mm")]
    (waited,) = dependencies_of(node(gm, "mm"))
    assert waited.target is operator.getitem
    assert isinstance(waited.meta["val"], torch.Tensor)
    assert [(a.name, b.name) for a, b in remove_control_deps(gm.graph)] == [("topk", "mm")]
    assert described(gm) == before


def test_an_op_without_result_waits_and_is_waited_for(void_op):
    def program(x):
        product = x @ x
        void_op(x)
        return product, x * 2

    gm = traced(program, X)
    before = described(gm)
    void = next(n for n in gm.graph.nodes if "tell" in str(n.target))
    add_control_deps(gm.graph, {void: [node(gm, "mm")], node(gm, "mul"): [void]})
    assert dependencies_of(void) == (node(gm, "mm"),)
    assert dependencies_of(node(gm, "mul")) == (void,)
    assert_same_values(gm, program, X)
    remove_control_deps(gm.graph)
    assert described(gm) == before


def test_an_op_without_result_gets_into_the_operator_to_be_waited_for(void_op):
    def program(x):
        void_op(x)
        return x * 2

    gm = traced(program, X)
    void = next(n for n in gm.graph.nodes if "tell" in str(n.target))
    add_control_deps(gm.graph, {node(gm, "mul"): [void]})
    assert is_control_deps(void)
    assert [dependency.op for dependency in dependencies_of(void)] == ["placeholder"]


def test_an_op_that_writes_keeps_its_order_with_reads():
    def writes(x):
        buffer = x.clone()
        read = buffer + 1
        buffer.copy_(x @ x)
        return read, buffer * 2

    gm = traced(writes, X)
    copy = next(n for n in gm.graph.nodes if n.target is aten.copy_.default)
    add_control_deps(gm.graph, {copy: [node(gm, "add")]})
    assert is_control_deps(copy)
    with pytest.raises(OrderingCycleError):
        add_control_deps(gm.graph, {node(gm, "add"): [copy]})
    assert_same_values(gm, writes, X)


def test_a_body_gets_a_name_of_its_own():
    gm = traced(independent, X)
    gm.subgraph_mul = gm.subgraph_mul_0 = X
    add_control_deps(gm.graph, {node(gm, "mul"): [node(gm, "mm")]})
    assert gm.subgraph_mul is gm.subgraph_mul_0 is X
    assert node(gm, "mul").args[1].target != "subgraph_mul"
    assert_same_values(gm, independent, X)


def test_metadata_stays_and_what_inductor_reads_of_the_op_goes_inside():
    gm = traced(independent, X)
    mul = node(gm, "mul")
    own = {"eager_input_vals": ((), {}), "should_fallback": True, "custom": {"fallback_to_eager": True, "other": 1}}
    mul.meta.update(own)
    before = described(gm), dict(mul.meta)
    add_control_deps(gm.graph, {mul: [node(gm, "mm")]})
    assert "eager_input_vals" not in mul.meta
    assert "should_fallback" not in mul.meta
    assert mul.meta["custom"] == {"other": 1}
    assert mul.meta["val"] is before[1]["val"]
    (inner,) = (n for n in body_of(mul).graph.nodes if n.op == "call_function")
    assert {key: inner.meta[key] for key in own} == own
    placeholder = body_of(mul).graph.find_nodes(op="placeholder")[0]
    assert placeholder.meta["val"].shape == (4, 4)
    remove_control_deps(gm.graph)
    assert (described(gm), mul.meta) == before


def test_metadata_of_a_call_from_a_pass_outlives_it():
    gm = traced(independent, X)
    mul = node(gm, "mul")
    add_control_deps(gm.graph, {mul: [node(gm, "mm")]})
    mul.meta["noted"] = 1
    remove_control_deps(gm.graph)
    assert mul.meta["noted"] == 1


def test_a_node_in_a_branch():
    def program(x):
        return torch.cond(x.sum() > 0, lambda x: ((x + 1) @ x, x * 2), lambda x: (x - 1, x * 3), (x,))

    gm = traced(program, X)
    branch = gm.true_graph_0
    products = {n.name: n for n in branch.graph.nodes}
    add_control_deps(branch.graph, {products["mul"]: [products["mm"]]})
    branch.recompile()
    assert_same_values(gm, program, X.abs())
    assert any(is_control_deps(n) for n in branch.graph.nodes)
    assert remove_control_deps(gm.graph, bodies=False) == ()
    assert any(is_control_deps(n) for n in branch.graph.nodes)
    remove_control_deps(gm.graph)
    assert not any(is_control_deps(n) for n in branch.graph.nodes)
    assert_same_values(gm, program, X.abs())


def test_a_condition_itself_waits():
    def program(x):
        return x @ x, torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    gm = traced(program, X)
    condition = next(n for n in gm.graph.nodes if "cond" in str(n.target))
    before = described(gm)
    add_control_deps(gm.graph, {condition: [node(gm, "mm")]})
    assert_same_values(gm, program, X)
    remove_control_deps(gm.graph)
    assert described(gm) == before


def test_pytorchs_own_edges_are_understood_and_removed():
    from torch._inductor.fx_passes.control_dependencies import preserve_node_ordering

    gm = traced(independent, X)
    preserve_node_ordering(gm.graph, {node(gm, "mul"): [node(gm, "mm")]})
    preserve_node_ordering(gm.graph, {node(gm, "mul"): [node(gm, "add")]})
    add_control_deps(gm.graph, {node(gm, "mul"): [node(gm, "add"), node(gm, "mm")]})
    edges = remove_control_deps(gm.graph)
    assert {(a.name, b.target) for a, b in edges} == {("mm", aten.mul.Tensor), ("add", aten.mul.Tensor)}
    assert not any(is_control_deps(n) for n in gm.graph.nodes)
    assert_same_values(gm, independent, X)
