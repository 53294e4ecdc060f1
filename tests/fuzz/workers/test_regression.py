"""What earlier campaigns kept is checked again: known findings in each environment, and kept programs."""

import dataclasses
import json

import pytest

from pytest_regional.fuzz.store import open_store
from pytest_regional.fuzz.workers.member import Member
from pytest_regional.fuzz.workers.plan import Part, Plan, joined
from pytest_regional.fuzz.workers.records import WorkerRecord
from pytest_regional.fuzz.workers.regression import fill
from pytest_regional.fuzz.workers.status import StatusReader

PLAN = Plan((Part("reference", "cpu", "interpret"), Part("torch", "cpu", "native")), 7, ("old", "new"), programs=0)


def finding(**fields):
    return {"version": 2, "oracle": "parity", "stage": "run", "origin": "value of output", "backend": "torch", **fields}


@pytest.fixture
def filled(tmp_path):
    """A directory and a store of earlier campaigns, and what is made of them."""
    folder = tmp_path / "found"
    (folder / "corpus" / "native").mkdir(parents=True)
    (folder / "a.json").write_text(json.dumps(finding()))
    (folder / "junk.json").write_text("{")
    (folder / "other-backend.json").write_text(json.dumps(finding(backend="inductor")))
    (folder / "of-capture.json").write_text(json.dumps(finding(backend="aot_eager")))
    (folder / "corpus" / "native" / "one.json").write_text('{"steps": 1}')
    source = open_store(tmp_path / "source")
    source.write("findings", "b", {"finding": finding(), "size": 2}, version=0)
    source.write("corpus", "two", {"mode": "interpret", "program": {"steps": 2}, "size": 1, "keys": []}, version=0)
    source.write("corpus", "three", {"mode": "emulated", "program": {"steps": 3}, "size": 1, "keys": []}, version=0)
    source.write("corpus", "junk", 5, version=0)
    store = open_store(tmp_path / "store")
    joined(store, PLAN)
    return store, fill(store, PLAN, folder, source)


def member(store, environment):
    return Member(store, PLAN, environment, WorkerRecord(environment, "host", 1, "place"))


def test_what_the_backends_can_show_is_to_be_checked(filled):
    _, regression = filled

    assert (regression.findings, regression.programs) == ({"a", "b", "of-capture"}, 2)


def test_each_environment_checks_all_findings_and_one_worker_each_program(filled):
    store, _ = filled
    old, new = member(store, "old"), member(store, "new")

    taken = [old.next_elsewhere()[0] for _ in range(3)], [new.next_elsewhere()[0] for _ in range(3)]
    lefts = [old.next_left([0, 1]), new.next_left([0, 1])]

    assert list(map(sorted, taken)) == [["a", "b", "of-capture"]] * 2
    assert old.next_elsewhere() is None
    assert sorted((left.part, left.program["steps"]) for left in lefts) == [(0, 2), (1, 1)]
    assert old.next_left([0, 1]) is old.next_batch() is None


def test_what_fails_nowhere_is_fixed_and_what_was_not_reached_is_counted(filled):
    store, regression = filled
    old, new = member(store, "old"), member(store, "new")
    for worker, outcomes in ((old, {"a": "fixed", "b": "fixed"}), (new, {"a": "fixed", "b": "still fails"})):
        for _ in range(2):
            name, _ = worker.next_elsewhere()
            worker.finish_elsewhere(name, outcomes[name], "")
    status = StatusReader(store, PLAN).read()

    assert regression.fixed(status) == ["parity (run): value of output"]
    assert regression.unchecked(status) == 4  # one finding in two environments, and two programs


def test_without_a_store_there_is_what_the_directory_holds(tmp_path):
    store = open_store(tmp_path / "store")
    plan = dataclasses.replace(PLAN, environments=("python",))
    joined(store, plan)

    assert fill(store, plan, tmp_path / "nowhere", None).findings == frozenset()
