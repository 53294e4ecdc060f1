"""A small program for each operator of the table."""

import itertools
import math

from pytest_regional.fuzz.draw.encoding import SHAPES
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.building import Builder
from pytest_regional.fuzz.model.program import Block, Region, Step
from pytest_regional.fuzz.operators.table import operator_named

#: Without those of thousands of elements: broadcast against each other, they would take a second for each operator.
SMALL_SHAPES = tuple(shapes for shapes in SHAPES if max(map(math.prod, shapes)) < 8192)

BLOCKS = (
    Block((0,), (Step("sin", (0,), (), (1,)),), 1),
    Block((0, 1), (Step("mul", (0, 1), (), (2,), (Region("inner"),)), Step("cos", (2,), (), (3,))), 3),
    Block((0,), (Step("tanh", (0,), (), (1,)), Step("neg", (1,), (), (2,))), 2),
)


def arguments_of(shapes, dtype, *, training):
    """Return floats of every shape, and masks, indices and integers of some."""
    floats = [TensorInput(shape, dtype, content="positive", requires_grad=training) for shape in shapes]
    plain = [TensorInput(shape, dtype, content="distinct") for shape in shapes]
    masks = [TensorInput(shape, "bool", content="mask") for shape in shapes]
    integers = [TensorInput(shape, "int64", content="index", below=2) for shape in shapes]
    singles = [TensorInput(shape, "int64", content="index", below=2) for shape in ((1,), (1, 1), (2,))]
    wholes = [TensorInput(shape, dtype, content="whole") for shape in shapes]
    small = [TensorInput(shape, small, content="whole") for shape in shapes for small in ("int8", "int32")]
    rows = [TensorInput((size,), "int64", content="order") for size in (2, 3, 4)]
    free = [TensorInput(shape, dtype, content="positive") for shape in shapes]
    return (*singles, *integers, *small, *rows, *masks, *wholes, *plain, *free, *floats)


def program_with(name, *, dtype="float32", training=True, scope=()):
    """Return a program of one step of the operator called ``name``; None where no arguments suit."""
    operator = operator_named(name)
    for shapes, further in itertools.product(SMALL_SHAPES, ("", "small", "large")):
        arguments = arguments_of(shapes, dtype, training=training)
        if further == "large":
            arguments = (TensorInput((2, 3), dtype, content="large"), *arguments)
        if further == "small":
            arguments = (
                TensorInput((), dtype, content="distinct"),
                TensorInput((2,), dtype, content="distinct"),
                *arguments,
            )
        builder = Builder(arguments, BLOCKS)
        if operator.family == "data_dependent":
            builder.choose(operator_named("masked_select"), (0, 0, 0, 0), (0, 0, 0))
        # In place, what is written must not be what a product of it needs.
        step = builder.choose(operator, (0, 2, 3, 0), (0, 0, 0), scope)
        if step is None:
            for _ in range(2):
                builder.choose(operator_named("mul_number"), (0, 0, 0, 0), (1, 0, 0))
            for place in range(2):
                builder.choose(operator_named("add_number"), (place + 2, 0, 0, 0), (3, 0, 0))
            step = builder.choose(operator, (0, 2, 3, 0), (0, 0, 0), scope or (Region("a"),))
        program = None if step is None else trimmed(builder, step)
        if program is not None:
            return program
    return None


def trimmed(builder, step):
    """Return the program without the arguments that it does not read; None if eager cannot backpropagate."""
    steps = builder.steps
    read = sorted({number for one in steps for number in one.operands if number < len(builder.arguments)})
    numbers = {number: place for place, number in enumerate(read)}
    again = Builder([builder.arguments[number] for number in read] or builder.arguments[:1], builder.blocks)
    for one in steps:
        operands = tuple(numbers.get(number, number) for number in one.operands)
        again.add(Step(one.operator, operands, one.parameters, one.results, one.scope, one.blocks))
    outputs = step.results or again.steps[-1].operands[:1] or (0,)
    if not again.backpropagates(outputs):
        return None
    return again.program(outputs, training=any(argument.requires_grad for argument in again.arguments))


__all__ = ["program_with"]
