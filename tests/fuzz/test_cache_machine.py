import functools

import pytest

from pytest_regional.fuzz.budget import Budget
from pytest_regional.fuzz.cache_machine import canonical, disagreement, program_of, run_cache_machine
from pytest_regional.fuzz.cache_model import CacheModel, Key
from pytest_regional.fuzz.lanes import in_lane
from pytest_regional.fuzz.oracles import LawBrokenError
from pytest_regional.testing import regional

OTHER = Key(region="b")


def counters(**moved):
    return {"cache_hits": 0, "cache_misses": 0, "cache_bypasses": 0, "region_compiles": 0, "pre_grad_calls": 0, **moved}


def test_the_model_remembers_what_is_where():
    model = CacheModel()
    answers = [model.answer(Key())]
    model.ran(Key())
    answers += [model.answer(Key()), model.answer_elsewhere(Key()), model.answer(OTHER)]
    model.restarted()
    answers.append(model.answer(Key()))
    model.damaged()
    answers += [model.answer(Key()), model.answer(OTHER)]
    model.ran_elsewhere(Key())
    answers.append(model.answer(Key()))
    model.cleared()
    answers.append(model.answer(Key()))

    assert answers == ["miss", "memory", "hit", "miss", "hit", "either", "miss", "hit", "miss"]


@pytest.mark.parametrize(
    ("expected", "moved", "problem"),
    [
        ("miss", counters(cache_misses=1, region_compiles=1), ""),
        ("miss", counters(cache_hits=1), "a hit where the model says miss"),
        ("hit", counters(cache_hits=1), ""),
        ("hit", counters(cache_misses=1, region_compiles=1), "a miss where the model says hit"),
        ("hit", counters(cache_hits=1, region_compiles=1), "code was generated although the result was there"),
        ("either", counters(cache_misses=1), ""),
        ("either", counters(), "no lookup where the model says either"),
        ("memory", counters(), ""),
        ("memory", counters(cache_hits=1), "a hit where the model says memory"),
        ("miss", counters(cache_misses=1, cache_bypasses=1), "the cache was bypassed"),
        ("miss", counters(cache_misses=2), "0 hits, 2 misses where the model says miss"),
        ("hit", counters(cache_hits=1, pre_grad_calls=1), "the pass ran 1 times on a hit, 0 are right"),
    ],
)
def test_what_the_counters_may_say(expected, moved, problem):
    assert disagreement(Key(), expected, moved) == problem


def test_a_pass_runs_on_a_miss():
    key = Key(uuid="v1")

    assert disagreement(key, "miss", counters(cache_misses=1, pre_grad_calls=1)) == ""
    assert disagreement(key, "miss", counters(cache_misses=1)) == "the pass ran 0 times on a miss, 1 are right"
    assert disagreement(key, "hit", counters(cache_hits=1)) == ""


def test_keys_of_one_graph_are_one_key():
    assert canonical(Key(program=1, region=None, fusion=8)) == Key(region=None)
    assert canonical(Key(program=1, fusion=8)) == Key(program=1, fusion=8)
    assert program_of(Key(program=1, region=None)).regions == ()


def histories(backend, number):
    with regional(backend, "cpu") as harness:
        lane = functools.partial(in_lane, harness, "structure")
        return run_cache_machine(harness, Budget(examples=number), 0, processes=False, shrink=False, scope=lane)


def test_the_reference_backend_agrees_with_the_model():
    assert histories("reference", 6) == 6


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("key_without_annotations", "a hit where the model says miss"),
        ("uuid_missing", "a hit where the model says miss"),
        ("pass_run_on_hit", "the pass ran 1 times on a hit"),
        ("never_hits", "a miss where the model says hit"),
    ],
)
def test_a_faulty_cache_does_not(fault, problem):
    with pytest.raises(LawBrokenError, match=problem):
        histories(f"tests.mutants.backends:{fault}", 60)
