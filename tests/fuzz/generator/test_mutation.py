"""Mutants: what each edit changes, and that every one is a program that may be drawn."""

import math
import random
from collections import Counter
from dataclasses import replace

import pytest

from pytest_regional.fuzz.draw import mutation
from pytest_regional.fuzz.draw.encoding import Options
from pytest_regional.fuzz.draw.graphs import random_programs
from pytest_regional.fuzz.draw.mutation import MOST_STEPS, is_drawable, mutated
from pytest_regional.fuzz.findings import files
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.claims import DRAWN, needs_of
from pytest_regional.fuzz.model.program import Program, Region, Step
from pytest_regional.fuzz.settings import settings_of_mode
from pytest_regional.fuzz.shrink.candidates import rebuild

PLAIN = Options()
SET = Options(settings=settings_of_mode("native"))


def some(count, seed=0, options=PLAIN):
    programs = random_programs(seed, max_steps=6, options=options)
    return [next(programs) for _ in range(count)]


def chain(*operators, scope=(), **arguments):
    steps = [Step(name, (index,), (), (index + 1,), scope) for index, name in enumerate(operators)]
    return Program((TensorInput((4,), **arguments),), tuple(steps), (len(operators),), training=False)


def test_mutants_are_programs_and_others_than_what_they_were_made_of():
    chance = random.Random(0)
    for program in some(25):
        before = program.identity
        mutant = mutated(program, chance, SET)
        assert program.identity == before
        assert mutant is not None
        assert mutant.identity != before
        assert is_drawable(mutant, SET)
        assert files.from_data(files.to_data(mutant)).identity == mutant.identity


def test_the_same_seed_makes_the_same_mutants():
    def mutants(seed):
        chance = random.Random(seed)
        return [mutated(program, chance, SET).identity for program in some(8)]

    assert mutants(1) == mutants(1)
    assert mutants(1) != mutants(2)


@pytest.mark.parametrize("edit", dict.fromkeys(mutation.MUTATIONS), ids=lambda edit: edit.__name__)
def test_each_edit_makes_programs(edit):
    chance, made = random.Random(0), 0
    for program in some(12, seed=3):
        candidate = edit(program, chance, SET)
        edited = None if candidate is None else rebuild(candidate, program)
        made += edited is not None and edited.identity != program.identity and is_drawable(edited, SET)
    assert made > 2


def test_edits_change_what_they_say():
    chance = random.Random(0)
    program = chain("sin", "exp", scope=(Region("a"),))
    exchanged = Counter(
        tuple(step.operator for step in rebuild(mutation.exchange_operator(program, chance, PLAIN), program).steps)
        for _ in range(10)
    )
    assert len(exchanged) > 5
    assert ("sin", "exp") not in exchanged
    assert mutation.toggle_training(program, chance, PLAIN).training
    assert mutation.redraw_settings(program, chance, PLAIN) is None
    resized = [mutation.resize(program, chance, PLAIN).arguments[0].shape for _ in range(10)]
    assert len(set(resized)) > 3


def test_a_mutant_needs_nothing_that_a_backend_disclaims():
    chance = random.Random(0)
    options = Options(without=frozenset(DRAWN))
    for program in some(15, options=options):
        mutant = mutated(program, chance, options)
        assert mutant is None or not needs_of(mutant) & options.without


def test_what_may_not_be_drawn_is_no_mutant():
    """Each of these is a program that eager runs; a campaign would take what comes of it for a defect."""
    trained = TensorInput((4,), requires_grad=True)
    shared = (TensorInput((4,)), TensorInput((4,), alias_of=0, detached=True), trained)
    writes = Program(shared, (Step("sin_", (0,), results=(3,)), Step("neg", (2,), results=(4,))), (4,))
    writes(*writes.inputs())
    assert not is_drawable(writes, PLAIN)
    assert is_drawable(replace(writes, arguments=(*shared[:2], replace(trained, requires_grad=False))), PLAIN)

    long = chain(*["sin"] * (MOST_STEPS + 1))
    assert not is_drawable(long, PLAIN)
    assert is_drawable(chain(*["sin"] * MOST_STEPS), PLAIN)
    assert not is_drawable(chain(), PLAIN)
    assert not is_drawable(replace(chain("sin"), arguments=(TensorInput((512, 512)),)), PLAIN)

    assert not is_drawable(replace(chain("sin"), settings=(("inductor.max_fusion_size", 1),)), PLAIN)
    assert not is_drawable(chain("sin", scope=(Region("a"),)), Options(regions=False))
    assert not is_drawable(chain("sin", dtype="bool", content="mask"), PLAIN)


def test_sizes_grow_to_no_more_than_a_moment():
    """One size stands in five dimensions: the largest one that is drawn would make 66**5 elements there."""
    program = Program((TensorInput((4,) * 5),), (Step("sin", (0,), results=(1,)),), (1,), training=False)
    chance = random.Random(0)
    sizes = {mutation.resize(program, chance, PLAIN).arguments[0].shape[0] for _ in range(50)}
    assert max(sizes) > 60

    for _ in range(100):
        mutant = mutated(program, chance)
        assert mutant is None or sum(math.prod(one.shape) for one in mutant.arguments) <= 2**17


def test_an_order_of_regions_that_cannot_be_kept_is_none():
    """The border between two regions moves, of which one is to run after the other."""
    first, second = Region("a"), Region("b", after=("a",))
    steps = (Step("sin", (0,), (), (1,), (first,)), Step("neg", (0,), (), (2,), (second,)))
    program = Program((TensorInput((4,)),), steps, (1, 2), training=False)
    chance = random.Random(0)
    swapped = program.with_steps(tuple(replace(step, scope=steps[1 - place].scope) for place, step in enumerate(steps)))

    orders = {mutation._reordered(swapped, chance, PLAIN).steps[1].region.after for _ in range(20)}

    assert orders <= {(), ("b",)}
    assert mutation._reordered(chain("sin"), chance, PLAIN) == chain("sin")
