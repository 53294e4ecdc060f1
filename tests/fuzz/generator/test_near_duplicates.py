"""Two regions that differ in one thing, and regions that have to change places."""

from dataclasses import replace

import pytest

from pytest_regional.fuzz.draw.encoding import with_order
from pytest_regional.fuzz.draw.templates import DIFFERENCES, SECOND, add_near_duplicates
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.building import Builder
from pytest_regional.fuzz.model.program import Program, Region, Step

A, B = (Region("a"),), (Region("b"),)


def twins_in(choice, *steps):
    """Return the steps of both near-duplicate regions, and the values that they read from outside."""
    builder = Builder((TensorInput((4, 4)),))
    for step in steps or (Step("sin", (0,), scope=A), Step("cos", (1,), scope=A)):
        builder.add(step)
    before = len(builder.steps)
    add_near_duplicates(builder, choice)
    found = [[step for step in builder.steps[before:] if step.region and step.region.name == name] for name in NAMES]
    values = [builder.values[twin[0].operands[0]].tensor for twin in found if twin]
    return found, values, builder


NAMES = ("one", "other")


@pytest.mark.parametrize("choice", range(len(DIFFERENCES)))
def test_both_have_the_same_operators(choice):
    (one, other), _, _ = twins_in(choice)
    assert len(one) > 1
    assert [step.operator for step in one] == [step.operator for step in other]


@pytest.mark.parametrize("choice", range(len(DIFFERENCES)))
def test_they_differ_in_at_most_one_thing(choice):
    (one, other), (left, right), _ = twins_in(choice)
    differences = [
        [step.parameters for step in one] != [step.parameters for step in other],
        other[0].region.configs != (),
        left.stride() != right.stride(),
        left.dtype != right.dtype,
        left.shape != right.shape,
    ]
    wanted = DIFFERENCES[choice]
    assert sum(differences) == (wanted.prepare.__name__ != "_negated" or wanted.region != SECOND)


def test_other_values_leave_them():
    choice = next(place for place, one in enumerate(DIFFERENCES) if one.reads)
    (one, other), _, builder = twins_in(choice)
    outside = {number for step in builder.steps if not step.regions for number in step.operands}
    read = [[step.results[0] in outside for step in twin] for twin in (one, other)]
    assert read == [[True, False, False], [False, True, False]]


def test_without_a_region_or_a_matrix_there_are_none():
    builder = Builder((TensorInput((4,)),))
    for choice in range(len(DIFFERENCES)):
        add_near_duplicates(builder, choice)
    assert builder.steps == []


def order_in(*steps):
    program = with_order(Program((TensorInput((4, 4)),), steps, tuple(step.results[0] for step in steps)))
    return {region.name: region.after for region in program.regions if region.after}


def test_regions_that_are_independent_change_places():
    first, second = Step("sin", (0,), (), (1,), A), Step("cos", (0,), (), (2,), B)
    assert order_in(first, second) == {"a": ("b",)}
    assert order_in(first, replace(second, operands=(1,))) == {"b": ("a",)}
    assert order_in(first, Step("neg", (1,), (), (3,)), replace(second, operands=(3,))) == {"b": ("a",)}
    assert order_in(Step("dropout", (0,), (("p", 0.5),), (1,), A), second) == {"b": ("a",)}
