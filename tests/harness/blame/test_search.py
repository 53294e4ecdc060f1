"""Few steps that fix: one, several, those that need each other, and too few experiments."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_regional.harness.blame.culprit import few_that_fix


def asked(guilty):
    """Return an experiment that fixes where all of ``guilty`` are left out, and what was tried."""
    tried = []

    def fixes(steps):
        tried.append(list(steps))
        return set(guilty) <= set(steps)

    return fixes, tried


@pytest.mark.parametrize("guilty", [0, 13, 99])
def test_one_of_a_hundred_takes_as_many_experiments_as_halves(guilty):
    fixes, tried = asked([guilty])
    assert few_that_fix(range(100), fixes, 20) == (guilty,)
    assert len(tried) <= 14


@given(st.sets(st.integers(0, 30), min_size=1, max_size=4))
def test_all_that_are_needed_are_found_and_no_others(guilty):
    fixes, tried = asked(guilty)
    assert set(few_that_fix(range(31), fixes, 1000)) == guilty
    assert len(tried) == len(set(map(tuple, tried))), "no experiment is made twice"


def test_any_one_of_two_is_enough():
    found = few_that_fix("abcdef", lambda steps: bool({"b", "e"} & set(steps)), 50)
    assert found in (("b",), ("e",))


def test_experiments_run_out():
    fixes, tried = asked([3, 40])
    found = few_that_fix(range(64), fixes, 5)
    assert len(tried) == 5
    assert {3, 40} <= set(found)


def test_one_step_is_known_without_an_experiment():
    fixes, tried = asked([7])
    assert few_that_fix([7], fixes, 0) == (7,)
    assert not tried


def test_nothing_to_leave_out_is_an_error():
    with pytest.raises(ValueError, match="nothing to leave out"):
        few_that_fix([], lambda steps: True, 1)
