import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from pytest_regional.fuzz.budget import Budget
from pytest_regional.fuzz.caches.campaign import fields_of_keys, run_random_sequences, sequences
from pytest_regional.fuzz.caches.sequences import (
    FEW,
    MANY,
    CacheModel,
    Clear,
    Compile,
    Damage,
    Executor,
    Key,
    NewProcess,
    Restart,
    canonical,
    disagreement,
    program_of,
    run_sequence,
)
from pytest_regional.fuzz.oracles import OracleViolationError
from pytest_regional.testing import regional

OTHER = Key(region="b")
VALUES = fields_of_keys(passes=True)
MANY_ROWS = Key(size=MANY, dynamic=True, program="cut off")
FEW_ROWS = replace(MANY_ROWS, size=FEW)
PASSES = {"pre_grad_calls": 0, "region_pre_grad_calls": 0}


def counters(**moved):
    return {"cache_hits": 0, "cache_misses": 0, "cache_bypasses": 0, "region_compiles": 0, **PASSES, **moved}


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


def test_compiled_programs_do_not_repair_files():
    model = CacheModel()
    model.ran(Key())
    model.damaged()
    model.ran(Key())
    assert (model.answer(Key()), model.answer_elsewhere(Key())) == ("memory", "either")


@pytest.mark.parametrize(
    ("expected", "moved", "problem"),
    [
        ("miss", counters(cache_misses=1, region_compiles=1), ""),
        ("miss", counters(cache_hits=1), "a hit where the model says miss"),
        ("hit", counters(cache_hits=1), ""),
        ("hit", counters(cache_misses=1, region_compiles=1), "a miss where the model says hit"),
        ("hit", counters(cache_hits=1, region_compiles=1), "code was generated although the result was there"),
        ("either", counters(cache_misses=1), ""),
        ("either", counters(cache_bypasses=1, region_compiles=1), ""),
        ("either", counters(), "no lookup where the model says either"),
        ("memory", counters(), ""),
        ("memory", counters(cache_hits=1), "a hit where the model says memory"),
        ("miss", counters(cache_misses=1, cache_bypasses=1), "the cache was bypassed"),
        ("miss", counters(cache_misses=2), "several lookups where the model says miss"),
        ("hit", counters(cache_hits=1, pre_grad_calls=1), "passes ran too often on a hit"),
    ],
)
def test_disagreements_of_counters(expected, moved, problem):
    assert disagreement(Key(), expected, moved) == problem


@pytest.mark.parametrize(
    ("key", "on_miss", "on_hit"),
    [
        (Key(passes=("v1",)), 1, 0),
        (Key(passes=("v1", "v2")), 2, 0),
        (Key(passes=("v1",), timing="default"), 1, 0),
        (Key(passes=("v1",), timing="early"), 1, 1),
        (Key(passes=("v1", None), timing="default"), 2, 2),
    ],
    ids=str,
)
def test_how_often_passes_run(key, on_miss, on_hit):
    assert disagreement(key, "miss", counters(cache_misses=1, pre_grad_calls=on_miss)) == ""
    assert disagreement(key, "hit", counters(cache_hits=1, pre_grad_calls=on_hit)) == ""
    assert "too often" in disagreement(key, "miss", counters(cache_misses=1, pre_grad_calls=on_miss + 1))
    assert "too often" in disagreement(key, "hit", counters(cache_hits=1, pre_grad_calls=on_hit + 1))


def test_early_passes_are_not_part_of_the_entry():
    model = CacheModel()
    model.ran(Key(passes=("v1",), timing="early"))

    assert model.answer(Key(passes=("v2",), timing="early")) == "hit"
    assert model.answer(Key(passes=("v2",))) == "miss"


def test_symbols_serve_sizes_within_their_guards():
    model = CacheModel()
    for key in (Key(dynamic=True), FEW_ROWS):
        model.ran(key)

    sizes = (FEW - 1, MANY)
    assert [model.answer(Key(size=size, dynamic=True)) for size in sizes] == ["memory", "memory"]
    assert [model.answer(replace(FEW_ROWS, size=size)) for size in sizes] == ["memory", "miss"]
    assert [model.answer(Key(size=size)) for size in sizes] == ["miss", "miss"]


def test_keys_of_one_graph_are_one_key():
    assert canonical(Key(program="shorter region", region=None, fusion=8)) == Key(region=None)
    assert canonical(Key(program="shorter region", fusion=8)) == Key(program="shorter region", fusion=8)
    assert canonical(Key(timing="early")) == Key()
    assert canonical(Key(passes=(None,))).timing == "default"
    assert program_of(Key(program="shorter region", region=None)).regions == ()


def played(backend, number):
    with regional(backend, "cpu") as harness:
        return run_random_sequences(harness, Budget(examples=number), 0, processes=False)


def test_the_reference_backend_agrees_with_the_model():
    assert played("reference", 4) == 4


def test_one_program_may_be_compiled_more_often_than_dynamo_likes():
    states, lists = ("", "one thread more", "deterministic"), ((), ("v1",), ("v2",))
    ways = [Compile(Key(passes=passes, state=state)) for passes in lists for state in states]

    with regional("reference", "cpu") as harness:
        run_sequence(harness, ways)

    assert len(ways) > torch._dynamo.config.recompile_limit


@pytest.fixture
def play(request):
    """Return a function that executes events on a backend."""

    def execute(backend, *events):
        with regional(backend, "cpu") as harness:
            run_sequence(harness, events)

    return execute


LISTED = Key(passes=("v1", "v2"))
TURNED = replace(LISTED, passes=("v2", "v1"))
HIT = "a hit where the model says miss"


#: For each fault of a cache, the shortest sequence that shows it, and what is said.
SHOWN = {
    "key_without_annotations": ([Compile(Key()), Compile(OTHER)], HIT),
    "key_without_boundaries": ([Compile(Key()), Compile(Key(program="shorter region"))], HIT),
    "key_without_state": ([Compile(Key()), Compile(Key(state="one thread more"))], HIT),
    "never_hits": ([Compile(Key()), Restart(), Compile(Key())], "a miss where the model says hit"),
    "guards_ignored": ([Compile(FEW_ROWS), Compile(MANY_ROWS)], "guards check failed"),
    "first_size_kept": ([Compile(FEW_ROWS), Compile(replace(FEW_ROWS, size=FEW - 1))], "eager"),
    "stored_numbers_rounded": (
        [Compile(Key(program="constants")), Restart(), Compile(Key(program="constants"))],
        "eager",
    ),
    "stored_constants_lost": (
        [Compile(Key(program="constants")), Restart(), Compile(Key(program="constants"))],
        "eager",
    ),
    "uuid_missing": ([Compile(Key(passes=("v1",))), Compile(Key(passes=("v2",)))], HIT),
    "uuids_unordered": ([Compile(LISTED), Compile(TURNED)], HIT),
    "first_pass_alone": ([Compile(LISTED)], "passes ran too rarely on a miss"),
    "pass_run_twice": ([Compile(Key(passes=("v1",)))], "passes ran too often on a miss"),
    "pass_run_on_hit": (
        [Compile(Key(passes=("v1",))), Restart(), Compile(Key(passes=("v1",)))],
        "passes ran too often on a hit",
    ),
    "late_without_uuid": (
        [Compile(Key(passes=(None,), timing="default")), Restart(), Compile(Key(passes=(None,), timing="default"))],
        "passes ran too rarely on a hit",
    ),
}


@pytest.mark.parametrize("fault", SHOWN)
def test_a_faulty_cache_breaks_the_model(play, fault):
    events, problem = SHOWN[fault]
    play("reference", *events)
    with pytest.raises(OracleViolationError, match=problem):
        play(f"tests.faults.backends:{fault}", *events)


def test_a_damaged_file_is_no_hit(play):
    damage = [Damage(number, "a flipped bit") for number in range(4)]
    play("reference", Compile(Key()), *damage, Restart(), Compile(Key()), Clear(), Compile(Key()))


def test_random_sequences_find_a_fault():
    with pytest.raises(OracleViolationError, match="a miss where the model says hit"):
        played("tests.faults.backends:never_hits", 60)


def test_sequences_are_the_same_for_a_seed_and_use_every_event():
    drawn = [list(itertools.islice(sequences(VALUES, seed), 60)) for seed in (3, 3, 4)]

    assert drawn[0] == drawn[1] != drawn[2]
    assert {type(event) for sequence in drawn[0] for event in sequence} == {Compile, NewProcess, Restart, Damage, Clear}


def test_without_processes_none_is_started():
    drawn = itertools.islice(sequences(VALUES, 3, processes=False), 60)

    assert not any(isinstance(event, NewProcess) for sequence in drawn for event in sequence)


@pytest.mark.parametrize(("backend", "harmed"), [("torch", {"code.py", "entry"}), ("own", {"entry"})])
def test_code_that_pytorch_generates_is_damaged_under_its_own_backend_alone(tmp_path, backend, harmed):
    for name in ("code.py", "entry"):
        (tmp_path / name).write_text("contents")
    harness = SimpleNamespace(folder=tmp_path, supports=lambda name: backend == "torch", _reset=lambda: None)

    executor = Executor(harness, "emulated")
    for number in range(2):
        executor.execute(Damage(number, "everything lost"))

    assert {path.name for path in tmp_path.iterdir() if not path.read_text()} == harmed
