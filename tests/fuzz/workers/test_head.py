"""The process that starts workers: it replaces dead ones, takes over from silent ones, passes on findings, and ends."""

import json
import os
import signal
import threading

import pytest

from pytest_regional.fuzz.findings import files
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Program, Step
from pytest_regional.fuzz.store import open_store
from pytest_regional.fuzz.workers import head as heads
from pytest_regional.fuzz.workers.assignment import CANNOT, DECLARED_DEAD, DONE, GROWN
from pytest_regional.fuzz.workers.engines import Ending
from pytest_regional.fuzz.workers.head import Head, WorkersError
from pytest_regional.fuzz.workers.member import Member
from pytest_regional.fuzz.workers.plan import Part, Plan, joined
from pytest_regional.fuzz.workers.records import Task, Totals, WorkerRecord

PLAN = Plan((Part("reference", "cpu", "interpret"),), 7, batch=5)
PROGRAM = files.to_data(
    Program((TensorInput((4,)),), (Step("sin", (0,), (), (1,)), Step("exp", (1,), (), (2,))), (2,), training=False)
)


class FakeEngine:
    """Workers that live in this process: ``lives`` says, for each that starts, what it does and how it ends."""

    def __init__(self, store, *lives):
        self.store, self.lives, self.ends, self.started = store, list(lives), [], []
        self.stopped, self.closed, self.killed = False, False, []

    def start(self, assignment):
        self.started.append(assignment)
        record = WorkerRecord(assignment.environment, "host", 1, assignment.place)
        member = Member(self.store, assignment.plan, assignment.name, record)
        life = self.lives.pop(0) if self.lives else lambda member: (DONE, "")
        ended = life(member)
        if ended is not None:
            self.ends.append(Ending(assignment, *ended))

    def endings(self):
        ends, self.ends = self.ends, []
        return ends

    def stop(self):
        self.stopped = True
        self.ends += [Ending(assignment, DONE, "") for assignment in self.started]

    def kill(self, name):
        self.killed.append(name)
        assignment = next(one for one in self.started if one.name == name)
        self.ends.append(Ending(assignment, -9, "ended by SIGKILL"))

    def close(self):
        self.closed = True


class Screen:
    """Remembers what is shown."""

    def __init__(self):
        self.lines, self.rows, self.crashes = [], [], []

    def shows(self, status):
        pass

    def found(self, row, script):
        self.rows.append((row.name, script))

    def crashed(self, row, part, script):
        self.crashes.append((row.ending, part, script))

    def says(self, text):
        self.lines.append(text)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(heads, "LOOK", 0.01)
    monkeypatch.setattr(heads, "READ", 0.02)


@pytest.fixture
def store(tmp_path):
    made = open_store(tmp_path / "store")
    joined(made, PLAN)
    return made


def head(store, engine, tmp_path, plan=PLAN, seconds=None):
    screen = Screen()
    made = Head(
        store, "store", plan, engine, screen, findings=tmp_path / "found", scratch=tmp_path / "scratch", seconds=seconds
    )
    return made, screen


def works(member):
    """Check the second program of a batch, for ever."""
    batch = member.next_batch()
    member.does(Task("batch", batch=batch, program=PROGRAM), {"reference, interpret": Totals(examples=1)})


def dies(member):
    works(member)
    return -11, "ended by SIGSEGV"


def ends(member):
    """Check two programs and end."""
    member.end({"reference, interpret": Totals(examples=2)})
    return DONE, ""


def starts_and_ends(member):
    member.end({})
    return DONE, ""


def test_it_ends_when_all_workers_have_ended(store, tmp_path):
    engine = FakeEngine(store, ends, ends)
    made, _ = head(store, engine, tmp_path)

    outcome = made.run(2)

    assert (outcome.exit_status, outcome.interrupted, engine.closed) == (0, False, True)
    assert len({one.name for one in engine.started}) == len({one.place for one in engine.started}) == 2


def test_each_environment_has_a_worker(store, tmp_path):
    plan = Plan(PLAN.parts, 7, ("old", "new"))
    made, _ = head(store, engine := FakeEngine(store, ends, ends), tmp_path, plan)

    made.run(1)

    assert [one.environment for one in engine.started] == ["old", "new"]


def test_a_dead_worker_is_replaced_and_its_program_is_kept_as_a_crash(store, tmp_path):
    engine = FakeEngine(store, dies, ends)
    made, screen = head(store, engine, tmp_path)

    outcome = made.run(1)

    assert outcome.exit_status == 1
    assert len(outcome.crashes) == 1
    first, second = engine.started
    assert (first.place, first.name != second.name) == (second.place, True)
    ((ending, part, script),) = screen.crashes
    assert (ending, part) == ("ended by SIGSEGV", "reference, interpret")
    finding = json.loads(script.with_suffix(".json").read_text())
    assert (finding["program"], finding["origin"]) == (PROGRAM, "the process ended by SIGSEGV")
    assert "torch.exp" in script.read_text()
    assert {one.scratch.parent for one in engine.started} == {tmp_path / "scratch"}
    assert len({one.scratch for one in engine.started}) == 2


def test_two_crashes_are_two_files(store, tmp_path):
    made, screen = head(store, FakeEngine(store, dies, dies, ends), tmp_path)

    assert len(made.run(1).crashes) == 2

    assert len({script for _, _, script in screen.crashes}) == 2
    assert all(script.is_file() for _, _, script in screen.crashes)


def test_a_crash_whose_program_is_none_is_said(store, tmp_path):
    def dies_of_something(member):
        member.does(Task("batch", batch=member.next_batch(), program={"version": 1, "steps": ["import os"]}))
        return -11, "ended by SIGSEGV"

    made, screen = head(store, FakeEngine(store, dies_of_something, ends), tmp_path)

    assert len(made.run(1).crashes) == 1

    assert any("the program of the crash" in line and "cannot be read: " in line for line in screen.lines)
    assert not list((tmp_path / "found").rglob("*.json"))


def test_a_crash_of_an_earlier_command_is_not_new(store, tmp_path):
    head(store, FakeEngine(store, dies, ends), tmp_path)[0].run(1)

    assert head(store, FakeEngine(store, ends), tmp_path)[0].run(1).exit_status == 0


def test_a_worker_that_was_taken_for_dead_is_replaced_too(store, tmp_path):
    engine = FakeEngine(store, lambda member: (DECLARED_DEAD, "too slow"), ends)

    assert head(store, engine, tmp_path)[0].run(1).exit_status == 0
    assert len(engine.started) == 2


def test_a_worker_that_has_grown_is_replaced_and_no_crash(store, tmp_path):
    def grows(member):
        member.end({})
        return GROWN, ""

    engine = FakeEngine(store, grows, ends)

    assert head(store, engine, tmp_path)[0].run(1).exit_status == 0
    assert len(engine.started) == 2


def test_a_worker_that_cannot_work_ends_the_campaign_and_says_why(store, tmp_path):
    engine = FakeEngine(store, lambda member: (CANNOT, "ModeError: mode 'aten' hands graphs to a graph pass"))

    with pytest.raises(WorkersError, match="in environment 'python': ModeError: mode 'aten'"):
        head(store, engine, tmp_path)[0].run(1)
    assert engine.closed


def test_workers_that_die_before_they_check_anything_end_the_campaign(store, tmp_path):
    engine = FakeEngine(store, *[lambda member: (1, "ImportError: no torch")] * 10)

    with pytest.raises(
        WorkersError, match=r"3 workers in a row ended before they checked anything; the last one ImportError: no torch"
    ):
        head(store, engine, tmp_path)[0].run(1)


def test_a_silent_worker_of_another_machine_is_taken_over_from(store, tmp_path, monkeypatch):
    monkeypatch.setattr(heads, "SILENT_SECONDS", 0.2)
    silent = Member(store, PLAN, "elsewhere", WorkerRecord("python", "other", 1, "x"))
    batch = silent.next_batch()
    silent.does(Task("batch", batch=batch, program=PROGRAM))

    def beats_until_the_silent_one_is_dead(member):
        def beat():
            while not store.read("workers", "elsewhere").data["settled"]:
                member.beat()
            engine.ends.append(Ending(engine.started[0], DONE, ""))

        threading.Thread(target=beat, daemon=True).start()

    engine = FakeEngine(store, beats_until_the_silent_one_is_dead)
    outcome = head(store, engine, tmp_path)[0].run(1)

    assert outcome.status.workers["elsewhere"].state == "dead"
    assert [crash.program for crash in outcome.status.crashes] == [PROGRAM]
    assert not engine.killed


def test_an_own_worker_that_is_silent_is_killed(store, tmp_path, monkeypatch):
    monkeypatch.setattr(heads, "SILENT_SECONDS", 0.1)
    engine = FakeEngine(store, works, ends)

    outcome = head(store, engine, tmp_path)[0].run(1)

    assert engine.killed == [engine.started[0].name]
    assert len(outcome.crashes) == 1


def test_a_worker_that_checks_one_program_without_end_is_killed(store, tmp_path, monkeypatch):
    monkeypatch.setattr(heads, "STUCK_SECONDS", 0.05)
    monkeypatch.setattr(heads, "STUCK_FACTOR", 0.0)
    engine = FakeEngine(store, works, ends)

    head(store, engine, tmp_path)[0].run(1)

    assert engine.killed == [engine.started[0].name]


def test_time_stops_the_workers(store, tmp_path):
    engine = FakeEngine(store, works)
    made, _ = head(store, engine, tmp_path, seconds=0.1)

    outcome = made.run(1)

    assert (engine.stopped, outcome.interrupted) == (True, False)
    assert engine.started[0].seconds <= 0.1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_stops_the_workers_and_is_handled_as_before_then(store, tmp_path, number):
    before = signal.getsignal(number)
    engine = FakeEngine(store, lambda member: os.kill(os.getpid(), number))

    outcome = head(store, engine, tmp_path)[0].run(1)

    assert (engine.stopped, outcome.interrupted) == (True, True)
    assert signal.getsignal(number) == before


def test_a_second_signal_ends_it_at_once(store, tmp_path):
    def twice(member):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        head(store, FakeEngine(store, twice), tmp_path)[0].run(1)


def test_a_campaign_that_checked_nothing_is_no_success(store, tmp_path):
    with pytest.raises(WorkersError, match="no program was checked in this time"):
        head(store, FakeEngine(store, starts_and_ends), tmp_path)[0].run(1)


def test_a_campaign_that_goes_on_and_checks_nothing_is_no_success_either(store, tmp_path):
    before = Member(store, PLAN, "before", WorkerRecord("python", "host", 1, "x"))
    before.end({"reference, interpret": Totals(examples=3, skipped_known=4)})

    with pytest.raises(WorkersError, match="no program was checked in this time"):
        head(store, FakeEngine(store, starts_and_ends), tmp_path)[0].run(1)


def test_what_no_command_has_written_is_written_by_the_next_one_and_new(store, tmp_path):
    found = Member(store, PLAN, "killed", WorkerRecord("python", "host", 1, "x"))
    found.keep("reference-x", {"size": 1, "title": "bad", "finding": {"version": 99}, "script": ""})

    made, screen = head(store, FakeEngine(store, ends), tmp_path)
    assert made.run(1).findings == [name for name, _ in screen.rows] == ["reference-x"]

    made, screen = head(store, FakeEngine(store, ends), tmp_path)
    assert made.run(1).findings == screen.rows == []


def test_what_is_known_here_is_passed_on(store, tmp_path):
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "reference-parity-run-1.json").write_text('{"version": 2}')
    (tmp_path / "found" / "no-json.json").write_text("{")

    head(store, FakeEngine(store, ends), tmp_path)[0].run(1)

    assert {name: entry.data for name, entry in store.entries("known").items()} == {
        "reference-parity-run-1": {"finding": {"version": 2}}
    }


def test_a_finding_that_cannot_be_read_is_said_and_not_written(store, tmp_path):
    def keeps(member):
        member.keep("reference-x", {"size": 1, "title": "bad", "finding": {"version": 99}, "script": "import os"})
        return ends(member)

    made, screen = head(store, FakeEngine(store, keeps), tmp_path)

    assert made.run(1).findings == ["reference-x"]
    assert "the finding reference-x in the store cannot be read: the finding has version 99" in screen.lines[0]
    assert not list((tmp_path / "found").glob("*.py"))
