"""Motifs: each fits where it should, is drawn often enough, and keeps to the families that are asked for."""

import random
from collections import Counter

import pytest

from pytest_regional.fuzz.draw.encoding import Options
from pytest_regional.fuzz.draw.random_rows import random_program
from pytest_regional.fuzz.draw.templates import MOTIFS, add_motif
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.building import Builder, check_buildable
from pytest_regional.fuzz.operators.table import operators

NAMES = [motif.name for motif in MOTIFS]


def steps_of(program):
    return [(step.operator, step.region.name if step.region else None) for step in program.steps]


def wanted(motif):
    return [(step.operator, step.region.name if step.region else None) for step in motif.steps]


@pytest.mark.parametrize("choice", range(len(MOTIFS)), ids=NAMES)
@pytest.mark.parametrize("training", [False, True])
def test_it_fits_behind_a_program_and_runs(choice, training):
    builder = Builder((TensorInput((2, 3, 4, 4), requires_grad=training),))
    add_motif(builder, choice)
    made = [number for step in builder.steps for number in step.results]
    program = builder.program((made[-1],), training=training)
    check_buildable(program)

    assert steps_of(program) == wanted(MOTIFS[choice])
    program(*program.inputs())


def test_it_is_left_out_where_nothing_has_its_rank():
    builder = Builder((TensorInput((4,)),))
    add_motif(builder, NAMES.index("channels-last values are stacked in a region, and what leaves it is viewed"))
    assert builder.steps == []


def test_it_keeps_to_the_families_that_are_asked_for():
    builder = Builder((TensorInput((4,)),))
    for choice in range(len(MOTIFS)):
        add_motif(builder, choice, {"pointwise"})
    assert {operators()[step.operator].family for step in builder.steps} == {"pointwise"}


def test_each_is_in_some_of_a_few_hundred_programs():
    drawn = random.Random(3)
    found = Counter()
    for _ in range(400):
        operators_of = steps_of(random_program(drawn))
        for motif in MOTIFS:
            found[motif.name] += ends_with(operators_of, wanted(motif))
    assert min(found[name] for name in NAMES) >= 1, found


def ends_with(steps, motif):
    """Tell whether the steps of a motif stand one behind the other."""
    return any(steps[place : place + len(motif)] == motif for place in range(len(steps)))


def test_without_regions_there_is_none():
    drawn = random.Random(3)
    programs = [random_program(drawn, options=Options(regions=False)) for _ in range(50)]
    assert not any(step.regions for program in programs for step in program.steps)
