"""Sequences in which mesh, rank, world size and process group change: what hits, what misses, what either may do."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch.distributed as dist

from pytest_regional._base.documents import DocumentError, decoded
from pytest_regional.fuzz.caches.campaign import RULES, fields_of_keys, sequences, sequences_for
from pytest_regional.fuzz.caches.findings import EventFields, _data
from pytest_regional.fuzz.caches.sequences import (
    COLLECTIVES,
    MESHES,
    CacheModel,
    Compile,
    Key,
    NewProcess,
    Restart,
    canonical,
    process_group,
    run_sequence,
)
from pytest_regional.fuzz.oracles import OracleViolationError
from pytest_regional.testing import regional

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch was built without torch.distributed")

PLAIN = Key(world=2)
REDUCE, GATHER, RANK, MESH = (
    canonical(Key(program=program)) for program in COLLECTIVES[:2] + COLLECTIVES[3:] + COLLECTIVES[2:3]
)


def answer(first, second):
    """Return what the model expects of ``second`` in a new process after ``first``."""
    model = CacheModel()
    model.ran(first)
    model.restarted()
    return model.answer(canonical(second))


@pytest.mark.parametrize(
    ("key", "change", "expected"),
    [
        (PLAIN, {"world": 4}, "hit"),
        (PLAIN, {"rank": 1}, "hit"),
        (PLAIN, {"world": 0}, "hit"),
        (REDUCE, {"rank": 1}, "hit"),
        (REDUCE, {"group": "other"}, "miss"),
        (REDUCE, {"world": 4}, "either"),
        (GATHER, {"rank": 1}, "hit"),
        (GATHER, {"group": "other"}, "miss"),
        (GATHER, {"world": 4}, "miss"),
        (RANK, {"rank": 1}, "miss"),
        (RANK, {"world": 4}, "hit"),
        (MESH, {"mesh": "4x1"}, "miss"),
        (MESH, {"rank": 1}, "miss"),
        (replace(MESH, mesh="4x1"), {"rank": 1}, "hit"),
    ],
    ids=str,
)
def test_what_the_model_expects(key, change, expected):
    assert answer(key, replace(key, **change)) == expected


def test_what_a_program_has_no_use_for_is_left_out():
    assert canonical(Key(mesh="2x2", group="other", rank=1)) == Key()
    assert canonical(Key(program="all reduce", training=True, dynamic=True, mesh="2x2")) == REDUCE
    assert (MESH.world, MESH.mesh) == (4, "2x2")


@pytest.mark.parametrize("mesh", MESHES)
def test_groups_of_a_mesh_have_the_sizes_and_names_that_the_model_takes_for_granted(mesh):
    named = {}
    for rank in range(4):
        with process_group(4, rank, mesh, "world") as (name, size):
            assert size == MESHES[mesh][0]
            named.setdefault(replace(MESH, mesh=mesh, rank=rank).entry.rank, set()).add(name)
    assert [len(names) for names in named.values()] == [1] * MESHES[mesh][1]
    assert len(set().union(*named.values())) == MESHES[mesh][1]
    assert not dist.is_initialized()


#: Every change of mesh, rank, world size and process group, and back.
ROUND = (
    *(Compile(key) for key in (Key(), PLAIN, replace(PLAIN, rank=1), replace(PLAIN, world=4))),
    *(
        Compile(key)
        for key in (REDUCE, replace(REDUCE, rank=1), replace(REDUCE, group="other"), replace(REDUCE, world=4))
    ),
    *(Compile(key) for key in (GATHER, replace(GATHER, world=4), replace(GATHER, group="other"))),
    *(Compile(key) for key in (RANK, replace(RANK, rank=1), replace(RANK, world=4))),
    *(Compile(key) for key in (MESH, replace(MESH, rank=1), replace(MESH, mesh="4x1"))),
    Restart(),
    *(Compile(key) for key in (REDUCE, replace(GATHER, world=4), replace(RANK, rank=1), MESH)),
)


def test_the_reference_agrees_with_the_model():
    with regional("reference", "cpu") as harness:
        run_sequence(harness, ROUND)


def test_pytorchs_cache_agrees_where_nothing_is_communicated():
    """It stores no graph with a collective outside of its regions: docs/findings/collective_is_not_saved.py."""
    changes = (Key(), PLAIN, replace(PLAIN, rank=1), replace(PLAIN, world=4), RANK, replace(RANK, rank=1))
    with regional("torch", "cpu") as harness:
        run_sequence(harness, (*map(Compile, changes), Restart(), *map(Compile, changes)))
        drawn = itertools.islice(sequences_for(harness, 3), 60)
        assert not any(event.key.world for sequence in drawn for event in sequence if isinstance(event, Compile))


@pytest.mark.usefixtures("warm_process")
def test_another_process_is_another_rank():
    with regional("reference", "cpu") as harness:
        run_sequence(harness, (Compile(RANK), NewProcess(RANK), NewProcess(replace(RANK, rank=1))), mode="native")


def test_the_reference_keys_the_size_of_a_group():
    """The model allows a hit, as the graph has the group's name alone; the reference does not take it."""
    with regional("reference", "cpu") as harness:
        run_sequence(harness, (Compile(REDUCE), Compile(replace(REDUCE, world=4))))
        assert (harness.counters.cache_hits, harness.counters.cache_misses) == (0, 2)


@pytest.mark.parametrize(
    ("second", "problem"),
    [(replace(GATHER, world=4), "eager|shape|a hit where"), (replace(RANK, rank=1), "eager|a hit where")],
    ids=["world size", "rank"],
)
def test_a_cache_that_takes_all_ranks_for_one_is_noticed(second, problem):
    first = replace(second, world=2, rank=0)
    faulty = regional("tests.faults.backends:key_without_ranks", "cpu")
    with faulty as harness, pytest.raises(OracleViolationError, match=problem):
        run_sequence(harness, (Compile(first), Compile(second)))


def test_programs_without_a_region():
    with regional("reference", "cpu", expects_regions=False) as harness:
        run_sequence(harness, (Compile(replace(REDUCE, region=None)), Restart(), Compile(replace(REDUCE, region=None))))


def test_walks_use_every_change():
    values = fields_of_keys(passes=False, collectives=True)
    assert {"change the mesh", "change the rank", "change the world size", "change the process group"} <= {*RULES}
    drawn = list(itertools.islice(sequences(values, 3, processes=False), 300))
    keys = [event.key for sequence in drawn for event in sequence if isinstance(event, Compile)]
    seen = {(key.program, key.world, key.rank, key.mesh, key.group) for key in keys if key.program in COLLECTIVES}
    assert {program for program, *_ in seen} == set(COLLECTIVES)
    assert {key.rank for key in keys} == {0, 1}
    assert {key.group for key in keys} == {"world", "other"}
    assert {key.mesh for key in keys} == {"", *MESHES}
    assert all(canonical(key) == key for key in keys)


def test_without_collectives_none_are_drawn():
    drawn = itertools.islice(sequences(fields_of_keys(passes=False), 3, processes=False), 100)
    assert not any(event.key.world for sequence in drawn for event in sequence if isinstance(event, Compile))


def test_an_emulated_gpu_has_no_collectives():
    with regional("reference", "cuda-emulated", expects_regions=False) as harness:
        drawn = itertools.islice(sequences_for(harness, 3), 60)
        assert not any(event.key.world for sequence in drawn for event in sequence if isinstance(event, Compile))


def test_files_of_findings_hold_them():
    event = Compile(replace(MESH, rank=1))
    assert decoded(_data(event), EventFields).made() == event
    assert str(event.key).endswith("rank 1 of 4, mesh 2x2")
    with pytest.raises(DocumentError, match=r"key.rank: there is no rank 3 of 2"):
        decoded({"event": "compile", "key": {"world": 2, "rank": 3}}, EventFields)
    with pytest.raises(DocumentError, match=r"key.mesh: Invalid enum value '8x8'"):
        decoded({"event": "compile", "key": {"mesh": "8x8"}}, EventFields)
