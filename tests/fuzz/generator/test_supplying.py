"""Operands that no value of a program is are made for the operators that need them."""

import random

import pytest

from pytest_regional.fuzz.draw.encoding import program_of
from pytest_regional.fuzz.draw.graphs import random_encoding
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.building import Builder, check_buildable, operands_supplied
from pytest_regional.fuzz.model.program import Context, Region
from pytest_regional.fuzz.operators.table import operator_named, operators

ZEROS = (0, 0, 0, 0)

#: Operators that no program with one ordinary input could call, and its shape.
NEEDY = {
    "aten_acos": (4, 4),
    "aten_acosh": (4, 4),
    "aten_sqrt_": (4, 4),
    "aten_binary_cross_entropy": (4, 4),
    "aten_cross_entropy_loss": (4, 4),
    "aten_multilabel_margin_loss": (4, 4),
    "aten_ldexp_Tensor": (4, 4),
    "embedding_bag": (4, 4),
    "inverse": (2, 4, 4),
    "batch_norm": (2, 3, 4, 4),
    "conv2d_bias": (2, 3, 4, 4),
}


@pytest.mark.parametrize("name", NEEDY)
def test_an_operator_gets_what_it_lacks(name):
    operator = operator_named(name)
    builder = Builder((TensorInput(NEEDY[name], requires_grad=True),))
    made = operands_supplied(builder, operator, ZEROS, ())
    assert made is not None
    step = builder.choose(operator, ZEROS, (0, 0, 0), (), made)
    assert step is not None
    check_buildable(builder.program(step.results or step.operands[:1]))


def test_what_is_made_stands_in_the_regions_of_the_operator_alone():
    builder = Builder((TensorInput((4, 4), requires_grad=True),))
    scope = (Context("autocast"), Region("a"))
    assert operands_supplied(builder, operator_named("aten_acos"), ZEROS, scope)
    assert {step.scope for step in builder.steps} == {(Region("a"),)}


def test_where_nothing_helps_nothing_is_added():
    builder = Builder((TensorInput((4, 4)),))
    before = dict(builder.values)
    assert operands_supplied(builder, operator_named("fractional_max_pool3d"), ZEROS, ()) is None
    assert builder.steps == []
    assert builder.values == before


def test_most_operators_are_drawn():
    source, drawn = random.Random(7), set()
    for _ in range(250):
        drawn |= set(program_of(random_encoding(source)).operators)
    wanted = {operator.name for operator in operators().values() if operator.family != "data_dependent"}
    assert len(drawn & wanted) > 0.6 * len(wanted)
