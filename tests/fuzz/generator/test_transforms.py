"""Loops over blocks, and derivatives of them."""

import pytest
import torch

from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.building import Builder, Refused
from pytest_regional.fuzz.model.program import Block, Step
from pytest_regional.fuzz.operators.table import operator_named, operators

SINE = Block((0,), (Step("sin", (0,), (), (1,)),), 1)
KINKED = Block((0,), (Step("sin", (0,), (), (1,)), Step("relu", (1,), (), (2,))), 2)
OF_TWO = Block((0, 1), (Step("mul", (0, 1), (), (2,)), Step("sin", (2,), (), (3,))), 3)
LOOPS = ("scan", "map_rows", "running_sum", "recurrence", "while_loop_counting", "while_loop_never")
DERIVATIVES = tuple(operator.name for operator in operators().values() if operator.differentiates)


def built(name, *arguments, block=SINE, numbers=(0, 0, 0)):
    builder = Builder(arguments or (TensorInput((3, 2), "float64"),), (block,))
    step = builder.choose(operator_named(name), (0, 0, 0, 0), numbers)
    return builder, step


@pytest.mark.parametrize("name", DERIVATIVES)
def test_a_derivative_of_a_sine_is_a_cosine(name):
    builder, step = built(name)
    program = builder.program(step.results, training=False)
    (x,) = program.inputs(seed=4)
    (found,) = program(x)
    wanted = -x.sin() if name in ("hessian", "forward_over_reverse") else x.cos()
    torch.testing.assert_close(found.reshape(-1), torch.tanh(wanted).reshape(-1))


@pytest.mark.parametrize("name", DERIVATIVES)
def test_kinks_are_not_differentiated(name):
    """Not even where nothing trains, as the derivative jumps in the forward."""
    _, step = built(name, block=KINKED)
    assert step is None


def test_blocks_with_kinks_are_vectorized_where_nothing_trains():
    _, step = built("vmap", block=KINKED)
    assert step is not None


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("number", [0, 1])
def test_a_loop_is_what_building_takes_in_its_place(name, number):
    block = OF_TWO if operator_named(name).passes == 2 else SINE
    builder, step = built(name, TensorInput((3, 2), "float64", requires_grad=True), block=block, numbers=(number, 0, 0))
    program = builder.program(step.results)
    (x,) = program.inputs(seed=0)
    for found, result in zip(program(x), step.results, strict=True):
        torch.testing.assert_close(found, builder.values[result].tensor)


@pytest.mark.parametrize("name", LOOPS)
def test_what_a_loop_returns_is_not_written_to_where_a_gradient_flows(name):
    builder, step = built(name, TensorInput((3, 2), requires_grad=True))
    with pytest.raises(Refused, match="custom autograd function"):
        builder.add(Step("mul_number_", step.results[:1], (("value", 0.5),)))


def test_rows_are_paired_with_a_row():
    builder, step = built("vmap_of_two", TensorInput((2,)), TensorInput((3, 2)), block=OF_TWO)
    x, y = builder.program(step.results, training=False).inputs()
    (found,) = builder.program(step.results, training=False)(x, y)
    torch.testing.assert_close(found, (y * x).sin())


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint_reentrant"])
@pytest.mark.parametrize("trained", [True, False])
def test_what_a_checkpoint_reads_again_is_not_drawn_to_be_written_to(name, trained):
    builder = Builder((TensorInput((3, 2), requires_grad=trained),), (SINE,))
    builder.add(Step("sin", (0,)))
    builder.add(Step(name, (1,), blocks=(0,)))
    written = builder.choose(operator_named("mul_number_"), (1, 0, 0, 0), (0,))
    assert (written is None) == trained


@pytest.mark.parametrize("name", ["jacrev", "jacfwd"])
def test_a_block_that_is_differentiated_compiles(name):
    """Dynamo reads the name of the scope that the block was defined in."""
    builder, step = built(name)
    program = builder.program(step.results, training=False)
    compiled = torch.compile(program.function, backend="eager", fullgraph=True)
    (x,) = program.inputs(seed=1)
    torch.testing.assert_close(compiled(x), program(x))


@pytest.mark.parametrize(("requires_grad", "fits"), [(False, True), (True, False)])
def test_nothing_is_drawn_that_kills_the_process_once_compiled(requires_grad, fits):
    """``docs/findings/zero_tensor_in_graph.py``."""
    square = Block((0,), (Step("square", (0,), (), (1,)),), 1)
    _, step = built("forward_over_reverse", TensorInput((3, 2), requires_grad=requires_grad), block=square)
    assert (step is not None) == fits
