"""Experiments with one failure: outcomes, limits, and what is kept."""

import pytest

from pytest_regional._base.errors import OutOfTimeError
from pytest_regional.harness.blame.culprit import RAISED, Change, Experiments

USUAL = frozenset({"value of output[0]", "value of output[1]"})


def experiments(answers, **limits):
    return Experiments(lambda change: frozenset(answers[change.sentence]), USUAL, **limits)


@pytest.mark.parametrize(
    ("fails", "outcome"),
    [
        ((), "fixed"),
        (USUAL, "the same"),
        (("value of output[0]",), "the same"),
        (("value of output[1]",), "fixed"),
        (("value of output[0]", "value of output[2]"), "the same"),
        (("value of output[2]",), "another failure"),
        (("RuntimeError",), "another failure"),
    ],
)
def test_outcomes(fails, outcome):
    made = experiments({"a": fails})
    assert made.outcome_of(Change("a")) == outcome
    assert made.fixes(Change("a")) == (outcome == "fixed")
    assert [(one.sentence, one.outcome) for one in made.made] == [("a", outcome)] * 2
    assert all(one.seconds >= 0 for one in made.made)


def test_there_are_only_so_many():
    made = experiments({"a": ()}, most=2)
    made.outcome_of(Change("a"))
    made.outcome_of(Change("a"))
    with pytest.raises(OutOfTimeError):
        made.outcome_of(Change("a"))


def test_they_take_only_so_long():
    made = experiments({"a": ()}, seconds=-1.0)
    with pytest.raises(OutOfTimeError):
        made.outcome_of(Change("a"))


def test_without_a_failure_there_is_nothing_to_blame():
    with pytest.raises(ValueError, match="nothing fails"):
        Experiments(lambda change: frozenset(), frozenset())


def test_what_remains_is_aimed_at_next():
    made = experiments({"a": ("value of output[1]",), "b": ("value of output[0]",)})
    assert made.fixes(Change("a"))
    assert made.remaining() == {"value of output[1]"}
    made.aim_at(made.remaining())
    assert made.fails(Change("a"))
    assert made.fixes(Change("b"))


def test_either_part_makes_two_exceptions_the_same():
    usual = frozenset({f"{RAISED}KeyError at torch", f"{RAISED}KeyError: 'x'"})
    made = Experiments(lambda change: frozenset({f"{RAISED}{change.sentence}", "other"}), usual)
    assert made.raises
    assert made.fails(Change("KeyError at torch"))
    assert made.fails(Change("KeyError: 'x'"))
    assert not made.fails(Change("TypeError"))
