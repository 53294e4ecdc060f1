"""What a worker process does with batches, failures and findings, in this process and without an engine."""

import dataclasses
import itertools

import pytest

from pytest_regional.fuzz import oracles
from pytest_regional.fuzz.findings import files
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Program, Step
from pytest_regional.fuzz.oracles import OracleViolationError
from pytest_regional.fuzz.store import open_store
from pytest_regional.fuzz.workers import worker as workers
from pytest_regional.fuzz.workers.assignment import GROWN, Assignment
from pytest_regional.fuzz.workers.member import Member
from pytest_regional.fuzz.workers.plan import Batch, Part, Plan, joined
from pytest_regional.fuzz.workers.records import WorkerRecord
from pytest_regional.fuzz.workers.status import StatusReader

PLAN = Plan((Part("aot_eager", "cpu", "native"),), 3, programs=6, batch=4, guidance="off", blames=False)


def chain(*operators):
    """Return a program of operators, one after the other."""
    steps = [Step(name, (place,), (), (place + 1,)) for place, name in enumerate(operators)]
    return Program((TensorInput((4,)),), tuple(steps), (len(steps),), training=False)


class Checked:
    """What is checked, in the place of the oracles: a sine is a failure."""

    def __init__(self):
        self.programs, self.then = [], {}

    def __call__(self, regional, program, *, oracles=None, known=lambda violation: False, **options):
        self.programs.append(program)
        self.then.get(len(self.programs), lambda: None)()
        violation = OracleViolationError("parity", "run", "wrong", origin="value of output")
        if "sin" in program.operators and not known(violation):
            raise violation


@pytest.fixture
def checked(monkeypatch):
    made = Checked()
    monkeypatch.setattr(oracles, "check", made)
    # The script of a finding is not run: its own tests do that, with a new interpreter each.
    monkeypatch.setattr("pytest_regional.fuzz.findings.folder.shows", lambda *_: True)
    return made


@pytest.fixture
def draws(monkeypatch):
    """Return what has workers draw given programs in turns, in every batch."""

    def draw(*programs):
        monkeypatch.setattr(workers, "random_programs", lambda seed, options: itertools.cycle(programs))

    draw(chain("neg"))
    return draw


@pytest.fixture
def store(tmp_path):
    return open_store(tmp_path / "store")


class Started:
    """One worker, and what it needs."""

    def __init__(self, store, tmp_path, plan=PLAN, name="a", environment="python"):
        self.plan, self.stop = joined(store, plan), workers.Stop()
        self.assignment = Assignment("store", self.plan, name, "place", environment, tmp_path)
        record = WorkerRecord(environment, "host", 1, "place")
        self.member = Member(store, self.plan, name, record)

    def run(self):
        return workers.Worker(self.assignment, self.member, self.stop).run()


def status_of(store):
    return StatusReader(store, joined(store, None)).read()


def test_it_checks_all_programs_and_ends(store, tmp_path, checked, draws):
    Started(store, tmp_path).run()

    status = status_of(store)
    assert len(checked.programs) == status.totals.examples == status.checked == 6
    assert [batch.examples for batch in status.done] == [4, 2]
    assert [worker.state for worker in status.workers.values()] == ["ended"]


def test_each_program_is_in_the_store_while_it_is_checked(store, tmp_path, checked, draws):
    draws(chain("neg"), chain("abs"))
    seen = []

    def look():
        task = store.read("workers", "a").data["task"]
        seen.append((task["batch"]["number"], task["batch"]["begin"], files.from_data(task["program"]).operators))

    checked.then = dict.fromkeys(range(1, 4), look)
    Started(store, tmp_path).run()

    assert seen == [(0, 0, ("neg",)), (0, 1, ("abs",)), (0, 2, ("neg",))]


def test_a_failure_is_reduced_and_its_finding_is_in_the_store_with_a_script(store, tmp_path, checked, draws):
    draws(chain("neg", "sin"))
    Started(store, tmp_path).run()

    (name, entry), *others = store.entries("findings").items()
    assert not others
    assert workers.finding_in(entry.data).program.operators == ("sin",)
    assert "sin" in entry.data["script"]
    assert status_of(store).totals.hits[name] >= 1
    assert not status_of(store).reducing


def test_a_known_finding_is_not_reduced_again(store, tmp_path, checked, draws):
    draws(chain("sin"))
    Started(store, tmp_path).run()
    (found,) = store.entries("findings").values()
    other = open_store(tmp_path / "other")
    other.write("known", "from-elsewhere", {"finding": found.data["finding"]}, version=0)
    before = len(checked.programs)

    Started(other, tmp_path).run()

    assert not other.entries("findings")
    assert status_of(other).totals.hits.total() >= 2
    assert len(checked.programs) - before == status_of(other).totals.examples


@pytest.mark.parametrize("stops", [1, 5], ids=["in the first batch", "in the second"])
def test_a_worker_that_is_stopped_finishes_its_program_and_leaves_the_rest(store, tmp_path, checked, draws, stops):
    first = Started(store, tmp_path)
    checked.then = {stops: first.stop.came.set}
    first.run()
    assert len(checked.programs) == stops
    assert not store.entries("crashes")

    Started(store, tmp_path, name="b").run()

    assert len(checked.programs) == 6
    assert status_of(store).totals.examples == 6


def test_programs_are_not_drawn_twice_when_a_batch_changes_hands(store, tmp_path, checked, draws):
    programs = [chain(*["neg"] * (1 + number)) for number in range(4)]
    draws(*programs)
    first = Started(store, tmp_path, dataclasses.replace(PLAN, programs=4))
    checked.then = {2: first.stop.came.set}
    first.run()
    Started(store, tmp_path, dataclasses.replace(PLAN, programs=4), "b").run()

    assert checked.programs == programs


def test_who_checked_mutants_alone_leaves_what_others_had_drawn(store, tmp_path, checked, draws, monkeypatch):
    monkeypatch.setattr("pytest_regional.fuzz.guidance.coverage_keys", lambda features, words: features)
    monkeypatch.setattr("pytest_regional.fuzz.guidance.mutated", lambda program, chance, options: chain("exp"))
    draws(chain("neg"), chain("abs"), chain("cos"), chain("sqrt"))
    plan = dataclasses.replace(PLAN, guidance="on", programs=4)
    for name, share, stops in (("a", 0.0, 2), ("b", 1.0, 3), ("c", 0.0, 9)):
        monkeypatch.setattr(workers, "MUTATED", share)
        started = Started(store, tmp_path, plan, name)
        checked.then = {stops: started.stop.came.set}
        started.run()

    assert [program.operators for program in checked.programs] == [("neg",), ("abs",), ("exp",), ("cos",)]


def test_time_ends_it(store, tmp_path, checked, draws):
    started = Started(store, tmp_path, dataclasses.replace(PLAN, programs=None))
    started.assignment = dataclasses.replace(started.assignment, seconds=0.0)
    started.run()

    assert not checked.programs


def test_a_worker_that_has_grown_ends_after_a_batch_and_asks_for_another(store, tmp_path, checked, draws, monkeypatch):
    sizes = iter([2**30, 4 * 2**30])
    monkeypatch.setattr(workers, "resident_bytes", lambda: next(sizes))

    assert Started(store, tmp_path).run() == GROWN
    assert len(checked.programs) == 4


def test_what_it_takes_is_known():
    assert 2**26 < workers.resident_bytes() < 2**40


def test_a_failure_that_was_left_is_checked_first(store, tmp_path, checked, draws):
    started = Started(store, tmp_path)
    claims = Member(store, started.plan, "first", WorkerRecord("python", "host", 1, "place"))
    signature = "aot_eager: parity (run): value of output"
    claims.claim(signature, 0, files.to_data(chain("sin")))
    other = Member(store, started.plan, "second", WorkerRecord("python", "host", 1, "place"))
    other.claim(signature, 0, files.to_data(chain("abs", "sin")))
    claims.release()
    claims.end({})
    other.end({})

    started.run()

    assert checked.programs[0] == chain("abs", "sin")
    assert len(store.entries("findings")) == 1
    assert not store.entries("postponed")


def test_what_a_stranger_left_is_passed_over(store, tmp_path, checked, draws):
    started = Started(store, tmp_path)
    junk = {"holder": None, "claim": "x", "part": 0, "program": {"version": 1, "steps": "import os"}, "attempts": 0}
    store.write("postponed", "junk", junk, version=0)
    store.write("postponed", "other-junk", {"holder": 3}, version=0)
    store.write("findings", "junk", {"finding": {"version": 2}, "size": "large", "title": 5}, version=0)
    store.write("known", "junk", ["no finding"], version=0)
    store.write("open", "junk", {"number": "many"}, version=0)
    draws(chain("sin"))

    started.run()

    assert status_of(store).totals.examples + status_of(store).totals.skipped_known == 6
    assert [row.title for row in status_of(store).findings] == ["parity (run): value of output (sin)"]


def test_a_finding_is_checked_in_the_other_environment(store, tmp_path, checked, draws, monkeypatch):
    plan = dataclasses.replace(PLAN, environments=("old", "new"), programs=1)
    draws(chain("sin"))
    Started(store, tmp_path, plan, "a", "old").run()
    asked = []

    def check_finding(finding, backend, device):
        asked.append((finding.program.operators, backend, device))
        return "fixed", "parity holds"

    monkeypatch.setattr(workers, "check_finding", check_finding)
    Started(store, tmp_path, plan, "b", "new").run()

    assert asked == [(("sin",), "aot_eager", "cpu")]
    (row,) = status_of(store).findings
    assert row.results == {"old": "still fails", "new": "fixed"}


def test_what_the_last_one_of_the_others_leaves_is_not_left_behind(store, tmp_path, checked, draws, monkeypatch):
    plan = dataclasses.replace(PLAN, environments=("old", "new"), programs=1)
    monkeypatch.setattr(workers, "check_finding", lambda *_: ("fixed", "parity holds"))
    draws(chain("neg"))
    late, others_work = Started(store, tmp_path, plan, "b", "new"), Member.others_work

    def finds_and_ends(self):
        draws(chain("sin"))
        monkeypatch.setattr(Member, "others_work", others_work)
        Started(store, tmp_path, plan, "a", "old").run()
        return False

    monkeypatch.setattr(Member, "others_work", finds_and_ends)
    late.run()

    assert [row.results["new"] for row in status_of(store).findings] == ["fixed"]


def test_a_backend_of_its_own_that_only_the_store_names_is_not_imported(store, tmp_path, checked, draws, monkeypatch):
    plan = dataclasses.replace(PLAN, environments=("old", "new"), programs=1)
    draws(chain("sin"))
    Started(store, tmp_path, plan, "a", "old").run()
    (name, entry), *_ = store.entries("findings").items()
    finding = {**entry.data["finding"], "backend": "os:system"}
    store.write("findings", name, {**entry.data, "finding": finding}, version=entry.version)
    monkeypatch.setattr(workers, "check_finding", lambda *_: pytest.fail("it was imported"))

    Started(store, tmp_path, plan, "b", "new").run()

    assert status_of(store).findings[0].results["new"] == "error"


def test_parts_take_turns_and_have_their_own_totals(store, tmp_path, checked, draws):
    parts = (PLAN.parts[0], Part("eager", "cpu", "native"))
    Started(store, tmp_path, dataclasses.replace(PLAN, parts=parts, programs=8)).run()

    assert {name: totals.examples for name, totals in status_of(store).by_part().items()} == {
        "aot_eager, native": 4,
        "eager, native": 4,
    }


def test_coverage_is_counted_where_it_is_new(store, tmp_path, checked, draws, monkeypatch):
    monkeypatch.setattr("pytest_regional.fuzz.guidance.coverage_keys", lambda features, words: features)
    draws(chain("neg"), chain("neg"), chain("abs"), chain("neg"))
    Started(store, tmp_path).run()

    first, second = status_of(store).done
    assert "op:abs" in " ".join(first.keys)
    assert not second.keys
    assert [count for _, count in status_of(store).coverage()] == [len(first.keys)] * 2


def test_a_heart_that_finds_itself_declared_dead_ends_the_worker(store, tmp_path, monkeypatch):
    from pytest_regional.fuzz.workers.deaths import declare_dead
    from pytest_regional.fuzz.workers.member import DeclaredDeadError

    monkeypatch.setattr(workers, "BEAT", 0.01)
    started = Started(store, tmp_path)
    declare_dead(store, "a", "silent")

    with pytest.raises(DeclaredDeadError), started.stop.beating(started.member):
        assert started.stop.came.wait(5)


def test_batches_have_other_seeds_and_the_first_one_goes_on(store):
    assert Batch(0, 0) != Batch(0, 0, begin=1)
    assert PLAN.seed_of(0) != PLAN.seed_of(1)
    assert dataclasses.replace(PLAN, seed=4).seed_of(0) != PLAN.seed_of(0)


def test_what_one_worker_keeps_another_one_mutates_and_does_not_keep_again(
    store, tmp_path, checked, draws, monkeypatch
):
    monkeypatch.setattr("pytest_regional.fuzz.guidance.coverage_keys", lambda features, words: features)
    monkeypatch.setattr("pytest_regional.fuzz.guidance.mutated", lambda program, chance, options: program)
    draws(chain("neg", "abs"))
    plan = dataclasses.replace(PLAN, guidance="on", programs=1, batch=1)
    Started(store, tmp_path, plan).run()
    kept = store.entries("corpus")
    assert [entry.data["mode"] for entry in kept.values()] == ["native"]

    draws(chain("neg"))
    more = dataclasses.replace(plan, programs=8)
    second = Started(store, tmp_path, more, "b")
    second.run()

    assert chain("neg", "abs") in checked.programs[1:]  # a mutant of what the first one kept
    assert store.entries("corpus").keys() >= kept.keys()
    assert not [batch for batch in status_of(store).done[1:] if "op:abs" in batch.keys]
