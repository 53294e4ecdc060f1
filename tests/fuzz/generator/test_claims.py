"""Programs hold what a backend claims, and nothing else."""

import random

import pytest

from pytest_regional import Capabilities
from pytest_regional.fuzz.draw.encoding import Options
from pytest_regional.fuzz.draw.graphs import random_program
from pytest_regional.fuzz.model.building import check_buildable
from pytest_regional.fuzz.model.claims import DRAWN, needs_of


def drawn(count, without=frozenset(), seed=5):
    source = random.Random(seed)
    return [random_program(source, options=Options(without=frozenset(without))) for _ in range(count)]


def test_requirements_of_programs_are_capabilities():
    assert set(DRAWN) <= set(Capabilities.names())


def not_drawn(expected, without=frozenset()):
    """Return what none of 400 programs needs; stop at the program that completes ``expected``."""
    source = random.Random(5)
    left = set(expected)
    for _ in range(400):
        left -= needs_of(random_program(source, options=Options(without=frozenset(without))))
        if not left:
            break
    return left


def test_all_are_needed_by_some_program():
    """The meta-test of those below: without a word to the generator there are programs that need each."""
    assert not_drawn(DRAWN) == set()


@pytest.mark.parametrize("name", DRAWN)
def test_no_program_needs_what_is_left_out(name):
    for program in drawn(40, {name}):
        check_buildable(program)
        assert name not in needs_of(program), str(program)


def test_everything_can_be_left_out_at_once():
    programs = drawn(150, DRAWN)

    assert all(needs_of(program) == frozenset() for program in programs)
    assert len({program.identity for program in programs}) > 140
    assert len({name for program in programs for name in program.operators}) > 60


@pytest.mark.parametrize("name", DRAWN)
def test_what_is_left_is_still_drawn(name):
    """To do without one thing is not to do without the others."""
    kin = {
        "regions": {one for one in DRAWN if "region" in one},
        "region_ids": {"interleaved_regions", "region_order"},
        "region_configs": {"distinct_region_configs"},
        "higher_order_operators": {"nested_regions"},
    }.get(name, set())
    assert not_drawn(set(DRAWN) - {name} - kin, {name}) == set()
