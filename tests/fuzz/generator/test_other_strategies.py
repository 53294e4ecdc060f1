"""Strategies of graphs, pass pipelines, and fresh inputs."""

import re

import pytest
import torch
from hypothesis import Phase, find, given, settings

from pytest_regional.fuzz.draw.graphs import PASSES, EncodedNode, graph_of, region_of
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Program, Step
from pytest_regional.fuzz.operators.table import operators
from pytest_regional.reference import plan_partitions
from pytest_regional.strategies import graphs, inputs_for, pass_pipelines, programs

QUICK = settings(max_examples=25, database=None, deadline=None, derandomize=True)
SHRINKING = settings(max_examples=300, database=None, deadline=None, derandomize=True)
FINDING = settings(SHRINKING, phases=[Phase.generate])


@QUICK
@given(graphs())
def test_graphs_run_and_can_be_planned(drawn):
    drawn.module.graph.lint()
    results = drawn.module(*drawn.inputs())
    assert all(result.abs().max() <= 1 for result in results)
    order = list(drawn.module.graph.nodes)
    assert all(order.index(before) < order.index(after) for before, after in drawn.edges)
    plan = plan_partitions(drawn.module.graph, extra_edges=drawn.edges)
    assert len(plan.partitions) >= len({region_of(node) for node in order} - {None})


def test_graphs_shrink_to_few_nodes():
    def feeds(drawn):
        return any(
            None not in (region_of(node), region_of(operand)) and region_of(node) != region_of(operand)
            for node in drawn.module.graph.nodes
            for operand in node.all_input_nodes
        )

    # What Hypothesis draws depends on the constants in the package's source, and so does the time that shrinking takes.
    smallest = find(graphs(), feeds, settings=settings(SHRINKING, max_examples=2000))
    assert len(smallest.module.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor)) == 2
    assert smallest.edges == ()
    assert "mul" in repr(smallest)


@QUICK
@given(graphs(max_nodes=8), pass_pipelines())
def test_pipelines_change_no_value(drawn, passes):
    inputs = drawn.inputs()
    before = drawn.module(*inputs)
    for one in passes:
        one(drawn.module)
    drawn.module.graph.lint()
    drawn.module.recompile()
    for ours, theirs in zip(drawn.module(*inputs), before, strict=True):
        assert torch.equal(ours, theirs)


def test_pipelines_shrink_and_choose():
    assert find(pass_pipelines(), lambda passes: True, settings=SHRINKING) == [PASSES[0]]
    longest = find(pass_pipelines(), lambda passes: len(passes) == 4, settings=SHRINKING)
    assert longest == [PASSES[0]] * 4
    assert find(pass_pipelines(("own",)), lambda passes: passes, settings=SHRINKING) == ["own"]


def test_passes_change_graphs_and_have_a_uuid():
    drawn = graph_of([EncodedNode(), EncodedNode(operator=3), EncodedNode(operator=5)])
    names = {one.name: one for one in PASSES}
    operands = next(node for node in drawn.module.graph.nodes if node.op == "call_function").args
    names["commute"](drawn.module.graph)
    assert next(node for node in drawn.module.graph.nodes if node.op == "call_function").args == operands[::-1]
    count = len(drawn.module.graph.nodes)
    names["negate twice"](drawn.module)
    assert len(drawn.module.graph.nodes) > count
    assert len({one.uuid() for one in PASSES}) == len(PASSES)


PROGRAM = Program(
    (
        TensorInput((3, 4), dynamic=(0,)),
        TensorInput((3, 4), dynamic=(0,)),
        TensorInput((2,), "int64", content="index", below=3),
    ),
    (Step("mul", (0, 1), (), (3,)), Step("index", (3, 2), (), (4,))),
    (4,),
)


@QUICK
@given(inputs_for(PROGRAM))
def test_inputs_of_programs(inputs):
    first, second, rows = inputs
    assert first.shape == second.shape
    assert first.shape[1] == 4
    assert rows.max() < 3
    PROGRAM(*inputs)


def test_inputs_of_programs_vary():
    for different in (
        lambda inputs: inputs[0].shape[0] > 5,
        lambda inputs: not inputs[0].is_contiguous(),
        lambda inputs: not torch.equal(inputs[2], PROGRAM.inputs()[2]),
    ):
        find(inputs_for(PROGRAM), different, settings=FINDING)


def test_inputs_of_functions():
    x, rows = torch.rand(3, 4, requires_grad=True), torch.tensor([2, 0])
    strategy = inputs_for(torch.index_select, x, 0, rows, dynamic={0: (1,)})
    larger = find(strategy, lambda inputs: inputs[0].shape[1] > 6, settings=FINDING)
    assert larger[0].shape[0] == 3
    assert larger[0].requires_grad
    torch.index_select(*larger)
    find(strategy, lambda inputs: not inputs[0].is_contiguous(), settings=FINDING)
    kept = find(inputs_for(torch.sin, x, layouts=False), lambda inputs: True, settings=FINDING)
    assert kept[0].shape == x.shape
    assert not torch.equal(kept[0], x)


def test_inputs_for_wants_examples_or_a_program():
    with pytest.raises(TypeError, match="example inputs"):
        inputs_for(torch.sin)
    with pytest.raises(TypeError, match="example inputs"):
        inputs_for(PROGRAM, torch.rand(3))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"families": ("matmull",)}, "unknown family of operators 'matmull'. Did you mean 'matmul'?"),
        ({"families": ()}, "there is nothing to draw"),
        ({"dtypes": ("float31",)}, "unknown floating dtype 'float31'"),
        ({"dtypes": ()}, "expected some of"),
        ({"max_steps": 0}, "max_steps=0"),
        ({"max_arguments": 0}, "max_arguments=0"),
    ],
)
def test_programs_of_nothing_are_an_error(options, problem):
    with pytest.raises(ValueError, match=re.escape(problem)):
        programs(**options)


def test_one_family_needs_no_tuple():
    families = [
        operators()[name].family for name in find(programs(families="matmul"), _multiplies, settings=FINDING).operators
    ]
    assert set(families) == {"matmul"}


def _multiplies(program):
    return any(operators()[name].family == "matmul" for name in program.operators)
