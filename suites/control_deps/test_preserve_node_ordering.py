"""PyTorch's own ``preserve_node_ordering``: what holds, and each defect as a strict expected failure."""

from __future__ import annotations

import pytest
import torch
from torch._inductor.graph import GraphLowering
from torch.fx.experimental.proxy_tensor import make_fx

from pytest_regional import region, torch_matches
from pytest_regional.backends.ordering import control_deps

from .edges import AddEdges, ops_by_name, pytorchs_orderer, run_ordered
from .programs import BRANCH_BACK, INDEPENDENT, WRITTEN_LAST, Case, independent, lowering_of_mutation, many_kinds
from .test_effects import FallBack, telling
from .test_twins import flowing

pytestmark = pytest.mark.regional_compile(requires=("inductor_code",), dynamic=False)

# In program order, since it takes no later dependency.
NESTED = Case(many_kinds, ("cat", "reversed_rows", "mm"))
HOLDING = (
    *(pytest.param(case, id=case.id) for case in (INDEPENDENT, NESTED, BRANCH_BACK)),
    pytest.param(WRITTEN_LAST, id=WRITTEN_LAST.id, marks=lowering_of_mutation),
)

graph_alone = pytest.mark.regional_compile(requires=(), expects_regions=False)


def defect(script, torch=">=2.11"):
    """Expect the failure that ``script`` shows, on these versions of torch."""
    return pytest.mark.xfail(torch_matches(torch), reason=f"docs/findings/{script}", strict=True)


def run_with_pytorchs(regional, program, *edges, adding=AddEdges):
    ordering = adding(*edges, orderer=pytorchs_orderer)
    return run_ordered(regional, program, regional.randn(8, 8), regional.randn(8, 8), edges=ordering)


def traced(program):
    graph_module = make_fx(program, tracing_mode="fake")(torch.empty(8, 8), torch.empty(8, 8))
    return graph_module.graph


@pytest.mark.parametrize("case", HOLDING)
def test_what_holds(regional, case):
    record = run_with_pytorchs(regional, case.program, *case.edges)
    record.code.assert_order(*case.code)
    record.code.assert_not_fused(*case.code)


@defect("order_later_dependency.py")
@graph_alone
def test_a_later_dependency(regional):
    graph = traced(independent)
    AddEdges(("mm", "add"), orderer=pytorchs_orderer)(graph)
    graph.lint()


@defect("order_cycle.py")
@graph_alone
@pytest.mark.parametrize("edges", [(("mm", "add"), ("add", "mm")), (("mm", "mm"),)], ids=["two", "itself"])
def test_a_cycle_is_refused(regional, edges):
    with pytest.raises(ValueError, match="cycle"):
        AddEdges(*edges, orderer=pytorchs_orderer)(traced(independent))


class NoDependency(AddEdges):
    """Gives an op an empty set of others to wait for."""

    def __call__(self, graph):
        self.graphs.append(graph)
        self.orderer(graph, {ops_by_name(graph)["mm"]: []})


@defect("order_empty_dependencies.py")
def test_no_dependency_is_no_edge(regional):
    run_with_pytorchs(regional, independent, adding=NoDependency)


@defect("order_stale_node.py")
@graph_alone
def test_nodes_stay_valid_between_two_calls(regional):
    graph = traced(independent)
    nodes = ops_by_name(graph)
    pytorchs_orderer(graph, {nodes["mm"]: [nodes["add"]]})
    pytorchs_orderer(graph, {nodes["mul"]: [nodes["mm"]]})
    waited_for = [
        other for node in graph.find_nodes(op="call_function", target=control_deps()) for other in node.args[0]
    ]
    assert set(waited_for) <= set(graph.nodes)


@defect("order_nested.py")
@graph_alone
def test_two_calls_for_one_node_do_not_nest(regional):
    def in_two_calls(graph):
        for name in ("add", "mm"):
            nodes = {node.name: node for node in graph.nodes}
            pytorchs_orderer(graph, {nodes["mul"]: [nodes[name]]})

    inputs = regional.randn(8, 8), regional.randn(8, 8)
    regional.run_pass(in_two_calls, independent, *inputs, stage="graph").assert_count("control_deps", 1)


@defect("order_needs_no_operator.py")
@graph_alone
def test_an_edge_that_values_imply_gets_no_operator(regional):
    adding = AddEdges(("add", "mul"), orderer=pytorchs_orderer)
    inputs = regional.randn(8, 8), regional.randn(8, 8)
    regional.run_pass(adding, flowing, *inputs, stage="graph").assert_count("control_deps", 0)


@region("r")
def read_before(x, w):
    first = x.cos()
    return first.exp(), w + 1


@defect("order_of_inlined_value.py")
def test_a_value_that_is_read_before_is_waited_for(regional):
    record = run_with_pytorchs(regional, read_before, ("cos", "add"))
    record.code.assert_not_fused("aten.cos", "aten.add")


@region("r")
def around_several_results(x, w):
    h = w + 1
    values, indices = torch.topk(x, 3)
    return h, values, indices, w * 2


@defect("order_of_several_results.py", torch="<2.13")
def test_an_op_with_several_results_is_waited_for(regional):
    record = run_with_pytorchs(regional, around_several_results, ("add", "topk"), ("topk", "mul"))
    record.code.assert_order("aten.add", "aten.topk", "aten.mul")


@defect("order_of_op_without_result.py")
def test_an_op_without_result_is_waited_for(regional, monkeypatch):
    """Nothing moves such an op today, so it is what the scheduler was told that shows whether the edge got there."""
    told, codegen = [], GraphLowering.codegen

    def watched(self):
        told.extend(name for names in self.additional_buffer_deps.values() for name in names)
        return codegen(self)

    monkeypatch.setattr(GraphLowering, "codegen", watched)
    run_with_pytorchs(regional, telling, ("tell", "mm"))
    assert told


@defect("order_of_fallback_op.py", torch="<2.15")
def test_an_op_that_falls_back(regional):
    record = run_with_pytorchs(regional, independent, ("add", "mm"), ("mm", "mul"), adding=FallBack)
    record.code.assert_order("aten.add", "aten.mm", "aten.mul")
