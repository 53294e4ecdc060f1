"""Templates: each fits where it should, is drawn often enough, and keeps to the families that are asked for."""

import random
from collections import Counter

import pytest

from pytest_regional.fuzz.draw.encoding import Options
from pytest_regional.fuzz.draw.graphs import random_program
from pytest_regional.fuzz.draw.templates import TEMPLATES, add_template
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.building import Builder, check_buildable
from pytest_regional.fuzz.operators.table import operators

NAMES = [template.name for template in TEMPLATES]


def steps_of(program):
    return [(step.operator, step.region.name if step.region else None) for step in program.steps]


def wanted(template):
    return [(step.operator, step.region.name if step.region else None) for step in template.steps]


@pytest.mark.parametrize("choice", range(len(TEMPLATES)), ids=NAMES)
@pytest.mark.parametrize("training", [False, True])
def test_it_fits_behind_a_program_and_runs(choice, training):
    builder = Builder((TensorInput((2, 3, 4, 4), requires_grad=training),))
    add_template(builder, choice)
    made = [number for step in builder.steps for number in step.results]
    program = builder.program((made[-1],), training=training)
    check_buildable(program)

    assert steps_of(program) == wanted(TEMPLATES[choice])
    program(*program.inputs())


def test_it_is_left_out_where_nothing_has_its_rank():
    builder = Builder((TensorInput((4,)),))
    add_template(builder, NAMES.index("channels-last values are stacked in a region, and what leaves it is viewed"))
    assert builder.steps == []


def test_it_keeps_to_the_requested_families():
    builder = Builder((TensorInput((4,)),))
    for choice in range(len(TEMPLATES)):
        add_template(builder, choice, {"pointwise"})
    assert {operators()[step.operator].family for step in builder.steps} == {"pointwise"}


def test_each_is_in_some_of_a_few_hundred_programs():
    drawn = random.Random(3)
    found = Counter()
    for _ in range(400):
        operators_of = steps_of(random_program(drawn))
        for template in TEMPLATES:
            found[template.name] += ends_with(operators_of, wanted(template))
    assert min(found[name] for name in NAMES) >= 1, found


def ends_with(steps, template):
    """Tell whether the steps of a template stand one behind the other."""
    return any(steps[place : place + len(template)] == template for place in range(len(steps)))


def test_without_regions_there_is_none():
    drawn = random.Random(3)
    programs = [random_program(drawn, options=Options(regions=False)) for _ in range(50)]
    assert not any(step.regions for program in programs for step in program.steps)
