"""Templates: each fits where it should, is drawn often enough, and keeps to the families that are asked for."""

import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest

from pytest_regional.fuzz.draw.encoding import EncodedArgument, EncodedPlan, EncodedProgram, Options, program_of
from pytest_regional.fuzz.draw.graphs import random_program
from pytest_regional.fuzz.draw.templates import DRAWN, TEMPLATES, add_template
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.building import Builder, check_buildable
from pytest_regional.fuzz.model.program import Block, Step
from pytest_regional.fuzz.operators.table import operators

NAMES = [template.name for template in TEMPLATES]


def steps_of(program):
    return [(step.operator, step.region.name if step.region else None) for step in program.steps]


def wanted(template, variation=0):
    return [(step.operator, step.region.name if step.region else None) for step in template.steps(variation)]


def builder_for(template, *, training=False):
    """Return a builder with one input, of a rank that the template reads."""
    shape = {2: (4, 4), 3: (2, 4, 4)}.get(template.most, (2, 3, 4, 4))
    one = TensorInput(shape, requires_grad=training and not template.shared)
    return Builder((one, replace(one, alias_of=0)) if template.shared else (one,), BLOCKS)


#: What templates call: a function of one value, and one of two.
BLOCKS = (
    Block((0,), (Step("sin", (0,), (), (1,)),), 1),
    Block((0, 1), (Step("mul", (0, 1), (), (2,)),), 2),
)


@pytest.mark.parametrize("choice", range(len(TEMPLATES)), ids=NAMES)
@pytest.mark.parametrize("training", [False, True])
def test_it_fits_behind_a_program_and_runs(choice, training):
    builder = builder_for(TEMPLATES[choice], training=training)
    assert add_template(builder, choice)
    made = [number for step in builder.steps for number in step.results]
    training = training and not TEMPLATES[choice].shared
    program = builder.program((made[-1],), training=training)
    check_buildable(program)

    assert steps_of(program) == wanted(TEMPLATES[choice])
    program(*program.inputs())


def test_another_one_is_taken_where_nothing_has_its_rank():
    builder = Builder((TensorInput((4,)),))
    choice = NAMES.index("channels-last values are stacked in a region, and what leaves it is viewed")
    template = add_template(builder, choice)
    assert template is not None
    assert template.rank <= 1
    assert NAMES.index(template.name) > choice


def test_without_a_float_there_is_none():
    builder = Builder((TensorInput((4,), "int64", content="index", below=3),))
    assert not add_template(builder, 0)
    assert builder.steps == []


def test_it_keeps_to_the_requested_families():
    builder = Builder((TensorInput((4,)),))
    for choice in range(len(TEMPLATES)):
        add_template(builder, choice, {"pointwise"})
    assert {operators()[step.operator].family for step in builder.steps} == {"pointwise"}


@pytest.mark.parametrize("choice", range(len(TEMPLATES)), ids=NAMES)
def test_every_alternative_fits_somewhere(choice):
    """Each step that a template may have is in a program of some variation, where inputs are of all ranks."""
    template = TEMPLATES[choice]
    written = {step for slot in template.slots for step in (slot if isinstance(slot, tuple) else (slot,)) if step}
    missing = {(step.operator, step.parameters) for step in written}
    drawn = random.Random(choice)
    shapes = ((4,), (4, 4), (2, 4, 4), (2, 3, 4, 4), (4, 2))
    inputs = [TensorInput(shape, content="positive") for shape in shapes]
    inputs += [replace(one, alias_of=place) for place, one in enumerate(inputs)]
    for _ in range(400):
        builder = Builder(inputs, BLOCKS)
        variation = drawn.randrange(template.variations * len(inputs))
        add_template(builder, choice, variation=variation)
        missing -= {(step.operator, step.parameters) for step in builder.steps}
    assert not missing


@pytest.mark.parametrize("choice", range(len(TEMPLATES)), ids=NAMES)
def test_zero_chooses_the_first_alternatives(choice):
    template = TEMPLATES[choice]
    first = [slot[0] if isinstance(slot, tuple) else slot for slot in template.slots]
    assert [step.operator for step in template.steps(0)] == [step.operator for step in first if step]


def test_patterns_stand_in_a_region_outside_and_across_its_boundary():
    template = TEMPLATES[NAMES.index("a rotary embedding")]
    regions = [[name for _, name in wanted(template, variation)] for variation in range(3)]
    assert regions == [["one"] * 8, [None] * 8, ["one", None] * 4]


def test_each_is_chosen_by_a_code(monkeypatch):
    chosen = set()
    monkeypatch.setattr(
        "pytest_regional.fuzz.draw.encoding.add_template",
        lambda builder, choice, *others, **more: chosen.add(choice),
    )
    for duplicate, variation in itertools.product(range(1, 256, 4), range(4)):
        plan = EncodedPlan(duplicate=duplicate, variation=variation)
        program_of(EncodedProgram((EncodedArgument(),), (), plan=plan))
    assert chosen == {*range(len(TEMPLATES))}


@pytest.mark.slow("draws a thousand programs", fast="test_each_is_chosen_by_a_code")
def test_each_is_in_some_of_many_programs(monkeypatch):
    found = Counter()

    def counting(*others, **more):
        template = add_template(*others, **more)
        found[template and template.name] += 1

    monkeypatch.setattr("pytest_regional.fuzz.draw.encoding.add_template", counting)
    drawn = random.Random(3)
    for _ in range(1500):
        random_program(drawn)
        if all(found[name] for name in NAMES):
            return
    raise AssertionError(f"not drawn: {[name for name in NAMES if not found[name]]}")


def test_a_template_of_weight_is_drawn_as_often():
    assert Counter(DRAWN) == {place: template.weight for place, template in enumerate(TEMPLATES)}
    assert max(template.weight for template in TEMPLATES) > 1


def test_shared_memory_is_that_of_inputs_without_gradient():
    one = TensorInput((4, 4))
    assert Builder((one, one)).shared_inputs == set()
    assert Builder((one, replace(one, alias_of=0), one)).shared_inputs == {0, 1}
    trained = replace(one, requires_grad=True)
    assert Builder((trained, replace(one, alias_of=0))).shared_inputs == set()


def test_without_regions_there_is_none():
    drawn = random.Random(3)
    programs = [random_program(drawn, options=Options(regions=False)) for _ in range(50)]
    assert not any(step.regions for program in programs for step in program.steps)
