"""Campaigns check what a backend claims."""

import itertools
import random

import pytest

from pytest_regional import declared
from pytest_regional.fuzz.budget import Budget
from pytest_regional.fuzz.caches.campaign import sequences_for
from pytest_regional.fuzz.caches.sequences import Compile
from pytest_regional.fuzz.campaign import UNCLAIMED_IN_A_ROW, Campaign, Programs
from pytest_regional.fuzz.draw.graphs import random_program
from pytest_regional.fuzz.model.claims import DRAWN, disclaimed, needs_of
from pytest_regional.fuzz.oracles import OracleViolationError
from pytest_regional.harness.devices.device import device_under_test
from tests.splitting_backend import BARE


class Harness:
    """A harness of a backend that disclaims some capabilities; nothing is compiled."""

    def __init__(self, *names):
        self.supports = declared(**dict.fromkeys(names, False))().get
        self.device_under_test = device_under_test("cpu")


def any_program(seed):
    source = random.Random(seed)
    while True:
        yield random_program(source)


def test_programs_of_a_draw_that_need_what_is_disclaimed_are_skipped():
    checked = []
    subject = Programs(lambda program, **how: checked.append(program), any_program, without=("backward", "rng"))
    result = Campaign(subject, Budget(examples=20), 0).run()

    assert result.examples == len(checked) == 20
    assert not any(needs_of(program) & {"backward", "rng"} for program in checked)
    assert set(result.unclaimed) == {"backward", "rng"}


def test_a_draw_of_nothing_else_ends():
    trained = next(program for program in any_program(0) if "backward" in needs_of(program))

    subject = Programs(lambda program, **how: None, lambda seed: itertools.repeat(trained), without=("backward",))
    result = Campaign(subject, Budget(examples=5), 0).run()

    assert (result.examples, result.unclaimed["backward"]) == (0, UNCLAIMED_IN_A_ROW)


def test_nothing_is_reduced_to_what_the_backend_disclaims():
    """A smaller program that writes to an input would fail as well, and is none of the backend's business."""
    asked = []

    def check(program, **how):
        asked.append(program)
        raise OracleViolationError("parity", "run", "", origin="value")

    subject = Programs(check, any_program, without=("mutation", "aliasing"))
    Campaign(subject, Budget(examples=3), 0, reduce_seconds=5.0).run()

    assert len(asked) > 20
    assert not any(needs_of(program) & {"mutation", "aliasing"} for program in asked)


FIELDS = {
    "backward": lambda key: key.training,
    "dynamic_shapes": lambda key: key.dynamic,
    "region_configs": lambda key: key.fusion is not None,
    "region_ids": lambda key: key.region == "b",
    "pre_grad_pass_lists": lambda key: len(key.passes) > 1,
    "pre_grad_timing": lambda key: bool(key.passes),
}


@pytest.mark.parametrize("name", FIELDS)
def test_sequences_hold_what_is_claimed(name):
    def found(harness, **how):
        events = itertools.chain.from_iterable(itertools.islice(sequences_for(harness, 3, **how), 120))
        return any(FIELDS[name](event.key) for event in events if isinstance(event, Compile))

    assert found(Harness())
    assert not found(Harness(name))
    assert found(Harness(name), everything=True)


def test_disclaimed_capabilities_are_those_of_the_specification():
    assert disclaimed(BARE) == set(DRAWN)
    assert disclaimed(Harness("rng", "outer_cache")) == {"rng"}
