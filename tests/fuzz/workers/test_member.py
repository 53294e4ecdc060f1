"""How workers share a campaign: what each gets, and what becomes of what dead ones had."""

import contextlib
import dataclasses

import pytest

from pytest_regional.fuzz.findings.strict_json import Field
from pytest_regional.fuzz.store import open_store
from pytest_regional.fuzz.workers.deaths import declare_dead
from pytest_regional.fuzz.workers.member import DeclaredDeadError, Member
from pytest_regional.fuzz.workers.plan import Batch, Part, Plan, PlanError, joined
from pytest_regional.fuzz.workers.records import Task, Totals, WorkerRecord

PLAN = Plan((Part("reference", "cpu", "interpret"), Part("torch", "cpu", "interpret")), 7, batch=5)
PROGRAM = {"version": 1, "steps": ["any data"]}


@pytest.fixture
def store(tmp_path):
    made = open_store(tmp_path / "store")
    joined(made, PLAN)
    return made


def member(store, name, environment="python", plan=PLAN):
    return Member(store, plan, name, WorkerRecord(environment, "host", 1, "place"))


def at(batch, begin, drawn=0, program=PROGRAM):
    """Return the task of a worker that checks program ``begin`` of a batch."""
    return Task("batch", batch=dataclasses.replace(batch, begin=begin, drawn=drawn), part=batch.part, program=program)


def test_each_batch_goes_to_one_worker_and_parts_take_turns(store):
    first, second = member(store, "a"), member(store, "b")

    taken = [first.next_batch(), second.next_batch(), first.next_batch(), second.next_batch()]

    assert [batch.number for batch in taken] == [0, 1, 2, 3]
    assert [batch.part for batch in taken] == [0, 1, 0, 1]
    assert len({PLAN.seed_of(batch.number) for batch in taken}) == 4


def test_environments_check_the_same_batches(store):
    plan = dataclasses.replace(PLAN, environments=("2.11", "2.13"))

    taken = [member(store, name, name, plan).next_batch() for name in plan.environments]

    assert taken == [Batch(0, 0), Batch(0, 0)]


def test_a_number_of_programs_is_divided_and_then_there_is_no_batch(store):
    plan = dataclasses.replace(PLAN, programs=12)
    worker = member(store, "a", plan=plan)

    numbers = [worker.next_batch().number for _ in range(3)]

    assert [plan.size_of(number) for number in numbers] == [5, 5, 2]
    assert worker.next_batch() is None


def test_the_rest_of_a_dead_workers_batch_goes_to_another_and_the_program_is_a_crash(store):
    dead, heir = member(store, "a"), member(store, "b")
    batch = dead.next_batch()
    dead.does(at(batch, 2, drawn=4), {"reference, interpret": Totals(examples=2)})

    assert declare_dead(store, "a", "ended by SIGSEGV")

    assert heir.next_batch() == Batch(0, 0, begin=3, drawn=4)
    assert heir.next_batch().number == 1
    (crash,) = store.entries("crashes").values()
    assert (crash.data["program"], crash.data["ending"]) == (PROGRAM, "ended by SIGSEGV")
    record = store.read("workers", "a").data
    assert (record["state"], record["settled"], record["totals"]["reference, interpret"]["examples"]) == (
        "dead",
        True,
        2,
    )


def test_between_two_programs_nothing_crashed(store):
    dead, heir = member(store, "a"), member(store, "b")
    dead.does(at(dead.next_batch(), 2, program=None))

    declare_dead(store, "a", "ended by SIGKILL")

    assert heir.next_batch().begin == 2
    assert not store.entries("crashes")


def test_the_crashed_program_may_be_known_better_than_the_record_says(store):
    dead = member(store, "a")
    dead.does(at(dead.next_batch(), 0))

    declare_dead(store, "a", "ended by SIGKILL", {"steps": ["a reduced one"]})

    assert [crash.data["program"] for crash in store.entries("crashes").values()] == [{"steps": ["a reduced one"]}]


def test_a_batch_whose_number_was_taken_just_before_death_is_not_lost(store):
    dead, heir = member(store, "a"), member(store, "b")
    store.next_number("batches-python", "a-0")  # the worker dies before it says so

    declare_dead(store, "a", "ended by SIGKILL")

    assert sorted([heir.next_batch().number, heir.next_batch().number]) == [0, 1]
    assert not dead.is_over


def test_a_batch_that_was_announced_and_not_taken_is_not_lost(store, monkeypatch):
    dead, heir = member(store, "a"), member(store, "b")
    monkeypatch.setattr(dead, "_hold_batch", lambda batch, version: pytest.skip.Exception)
    dead.next_batch()

    declare_dead(store, "a", "ended by SIGKILL")

    assert heir.next_batch() == Batch(0, 0)


def test_a_batch_that_was_announced_and_taken_by_another_is_left_to_it(store):
    first, dead, heir = member(store, "a"), member(store, "b"), member(store, "c")
    batch = first.next_batch()
    dead.does(at(batch, 0, program=None))  # announced, and then the other one was faster

    declare_dead(store, "b", "ended by SIGKILL")

    # One batch is open: that whose number the dead worker may have got.
    assert [heir.next_batch().number for _ in range(2)] == [1, 2]


def test_a_finished_batch_is_not_opened_again(store):
    dead, heir = member(store, "a"), member(store, "b")
    batch = dead.next_batch()
    dead.does(at(batch, 4))
    dead.finish_batch(batch, 5, ["key"])

    declare_dead(store, "a", "ended by SIGKILL")

    assert [heir.next_batch().number for _ in range(2)] == [1, 2]


def test_an_ending_of_several_lines_is_one(store):
    dead = member(store, "a")
    dead.next_batch()

    assert declare_dead(store, "a", "Traceback:\n  File\x1b[31m\nError: of 20 lines")

    assert WorkerRecord.read(Field(store.read("workers", "a").data)).ending.startswith("Traceback: File")
    assert not declare_dead(store, "a", "again")


def test_death_may_be_settled_twice_and_by_several(store):
    dead, heir = member(store, "a"), member(store, "b")
    dead.does(at(dead.next_batch(), 1))

    assert declare_dead(store, "a", "ended by SIGKILL")
    assert not declare_dead(store, "a", "ended by SIGKILL")

    assert [heir.next_batch() for _ in range(2)] == [Batch(0, 0, begin=2), Batch(1, 1)]


@pytest.mark.parametrize("fails_at", range(8), ids="write-{}".format)
def test_who_dies_while_it_settles_a_death_is_replaced(store, monkeypatch, fails_at):
    dead, heir = member(store, "a"), member(store, "b")
    batch = dead.next_batch()
    dead.does(at(batch, 1))
    dead.claim("parity (run): value", 0, PROGRAM)
    write, writes = store.write, []

    def dying(*arguments, **options):
        writes.append(arguments)
        if len(writes) > fails_at:
            raise KeyboardInterrupt
        return write(*arguments, **options)

    monkeypatch.setattr(store, "write", dying)
    with contextlib.suppress(KeyboardInterrupt):
        declare_dead(store, "a", "ended by SIGKILL")
    monkeypatch.setattr(store, "write", write)
    declare_dead(store, "a", "ended by SIGKILL")

    begun = {batch.number: batch.begin for batch in (heir.next_batch(), heir.next_batch(), heir.next_batch())}
    assert begun == {0: 2, 1: 0, 2: 0}
    assert len(store.entries("crashes")) == 1
    assert heir.next_left([0, 1]).program == PROGRAM
    assert store.read("workers", "a").data["settled"]


def test_a_worker_that_was_only_slow_notices_that_others_took_over(store):
    slow = member(store, "a")
    batch = slow.next_batch()
    declare_dead(store, "a", "silent")

    for too_late in (slow.beat, lambda: slow.does(at(batch, 1)), lambda: slow.end({})):
        with pytest.raises(DeclaredDeadError, match="silent for so long"):
            too_late()


def test_who_ends_by_itself_leaves_its_batch_and_no_crash(store):
    first, heir = member(store, "a"), member(store, "b")
    batch = first.next_batch()
    first.does(at(batch, 3, drawn=3, program=None))

    first.end({"reference, interpret": Totals(examples=3)})

    assert heir.next_batch() == Batch(0, 0, begin=3, drawn=3)
    assert not store.entries("crashes")
    assert not declare_dead(store, "a", "ended by SIGKILL")


def test_who_ends_by_an_error_keeps_its_totals(store):
    worker = member(store, "a")
    worker.does(Task(), {"reference, interpret": Totals(examples=3)})

    worker.end(why="no such mode")

    record = store.read("workers", "a").data
    assert (record["totals"]["reference, interpret"]["examples"], record["ending"]) == (3, "no such mode")


def test_a_failure_is_reduced_by_one_worker_and_others_leave_theirs_for_later(store):
    first, second = member(store, "a"), member(store, "b")

    assert first.claim("parity (run): value", 0, PROGRAM)
    assert not second.claim("parity (run): value", 0, {"steps": ["another"]})
    assert second.claim("parity (run): stride", 0, PROGRAM)
    assert second.next_left([0, 1]) is None  # the first one is not done

    first.release()

    left = second.next_left([0, 1])
    assert (left.program, left.part, left.attempts) == ({"steps": ["another"]}, 0, 0)
    assert first.next_left([0, 1]) is None  # it is taken
    second.finish_left(left)
    assert not store.entries("postponed")


def test_one_failure_of_each_worker_is_left_while_a_claim_lasts(store):
    first, second = member(store, "a"), member(store, "b")
    first.claim("parity (run): value", 0, PROGRAM)

    for number in range(3):
        second.claim("parity (run): value", 0, {"steps": [number]})

    assert [entry.data["program"] for entry in store.entries("postponed").values()] == [{"steps": [0]}]


def test_a_failure_is_left_to_who_can_check_its_part(store):
    first, second = member(store, "a"), member(store, "b")
    first.claim("parity (run): value", 1, PROGRAM)
    second.claim("parity (run): value", 1, PROGRAM)
    first.release()

    assert first.next_left([0]) is None
    assert first.next_left([1]).part == 1


def test_what_a_dead_worker_was_reducing_another_one_reduces_once(store):
    dead = member(store, "a")
    dead.claim("parity (run): value", 0, PROGRAM)
    declare_dead(store, "a", "ended by SIGKILL")

    second = member(store, "b")
    left = second.next_left([0])
    assert (left.program, left.attempts) == (PROGRAM, 1)
    second.claim("parity (run): value", 0, left.program, left.attempts)
    declare_dead(store, "b", "ended by SIGKILL")

    # Two workers died of it: the crashes say so, and nobody else tries.
    assert member(store, "c").next_left([0]) is None
    assert member(store, "d").claim("parity (run): value", 0, PROGRAM)


def test_findings_are_known_to_all_and_the_smaller_one_stays(store):
    first, second = member(store, "a"), member(store, "b")
    first.keep("x", {"size": 3, "title": "three"})
    assert [data["title"] for data in second.findings().values()] == ["three"]

    second.keep("x", {"size": 5, "title": "five"})
    assert [data["title"] for data in first.findings().values()] == ["three"]
    second.keep("x", {"size": 2, "title": "two"})
    assert [data["title"] for data in first.findings().values()] == ["two"]


def test_a_finding_is_checked_once_in_each_other_environment(store):
    plan = dataclasses.replace(PLAN, environments=("2.11", "2.13"))
    found, other, again = (
        member(store, "a", "2.11", plan),
        member(store, "b", "2.13", plan),
        member(store, "c", "2.13", plan),
    )
    found.keep("x", {"size": 1, "title": "one"})

    assert found.next_elsewhere() is None
    name, data = other.next_elsewhere()
    assert (name, data["title"]) == ("x", "one")
    assert again.next_elsewhere() is None
    other.finish_elsewhere("x", "fixed", "parity holds")

    (result,) = store.entries("results").values()
    assert (result.data["outcome"], result.data["environment"]) == ("fixed", "2.13")


def test_who_dies_of_a_finding_of_another_environment_says_so(store):
    plan = dataclasses.replace(PLAN, environments=("2.11", "2.13"))
    member(store, "a", "2.11", plan).keep("x", {"size": 1, "title": "one"})
    member(store, "b", "2.13", plan).next_elsewhere()

    declare_dead(store, "b", "ended by SIGSEGV")

    (result,) = store.entries("results").values()
    assert (result.data["outcome"], result.data["detail"]) == ("error", "ended by SIGSEGV")


def test_junk_that_names_a_dead_worker_does_not_stop_who_settles_its_death(store):
    dead = member(store, "a")
    dead.next_batch()
    for table in ("claims", "postponed", "results"):
        store.write(table, "junk", {"holder": "a"}, version=0)
        store.write(table, "more-junk", {"holder": "a", "attempts": "many", "part": None, "program": {}}, version=0)
        store.write(table, "list", ["a"], version=0)

    assert declare_dead(store, "a", "ended by SIGKILL")

    assert store.read("workers", "a").data["settled"]


def test_junk_among_findings_is_passed_over(store):
    worker = member(store, "a")
    store.write("findings", "x", ["junk"], version=0)
    assert worker.next_elsewhere() is None

    worker.keep("x", {"size": 3, "title": "three"})

    assert worker.findings()["x"]["title"] == "three"


def test_who_waits_for_others_is_not_waited_for(store):
    first, second = member(store, "a"), member(store, "b")
    batch = first.next_batch()
    assert second.others_work()

    first.finish_batch(batch, 5, [])
    first.does(Task())
    assert not second.others_work()


def test_who_works_in_another_environment_is_waited_for_as_it_may_find_something(store):
    first, second = member(store, "a", "old"), member(store, "b", "new")
    first.next_batch()

    assert second.others_work()


def test_a_store_has_one_plan(store):
    assert joined(store, dataclasses.replace(PLAN, seed=8)) == PLAN
    assert joined(store, None) == PLAN
    with pytest.raises(
        PlanError, match=r"holds another campaign: parts: .*torch, interpret, not reference, interpret\. Give another"
    ):
        joined(store, dataclasses.replace(PLAN, parts=PLAN.parts[:1]))


def test_more_programs_can_be_asked_for(store):
    assert joined(store, dataclasses.replace(PLAN, programs=100)).programs == 100
    assert joined(store, None).programs == 100


def test_a_store_without_a_campaign_says_what_to_do(tmp_path):
    with pytest.raises(PlanError, match="holds no campaign: say what to fuzz with --backend and --mode"):
        joined(open_store(tmp_path / "empty"), None)
