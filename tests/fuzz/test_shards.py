"""A campaign's shards: what its process checks and remembers, and what becomes of a process that is killed."""

import itertools
import json
import os
import random
import signal
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import pytest_regional.fuzz.oracles as oracles
import pytest_regional.fuzz.shard_worker as shard_worker
from pytest_regional._base.documents import DocumentError
from pytest_regional._base.errors import RegionalRuntimeError
from pytest_regional.fuzz.findings.folder import FindingsFolder
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Program, Step
from pytest_regional.fuzz.oracles import OracleViolationError
from pytest_regional.fuzz.shards import DONE, GROWN, CampaignFolder, Part, Plan, Progress, Work

PLAN = Plan((Part("aot_eager", "cpu", "native"),), 3, blames=False)


def chain(*operators):
    """Return a program of operators, one after the other."""
    steps = [Step(name, (place,), (), (place + 1,)) for place, name in enumerate(operators)]
    return Program((TensorInput((4,)),), tuple(steps), (len(steps),), training=False)


def line(program):
    """Return what a program is in the file of checked ones."""
    return " ".join(step.operator for step in program.steps)


class Checked:
    """What is checked, in the place of the oracles: a sine is a failure, and ``then`` happens at the nth check."""

    def __init__(self, file):
        self.file, self.then = file, {}

    def __call__(self, regional, program, *, oracles=None, known=lambda violation: False, **options):
        with self.file.open("a") as file:  # of a process that is killed, too
            file.write(line(program) + "\n")
        self.then.get(len(self.programs), lambda: None)()
        violation = OracleViolationError("parity", "run", "wrong", origin="value of output")
        if "sin" in program.operators and not known(violation):
            raise violation

    @property
    def programs(self):
        return self.file.read_text().splitlines() if self.file.exists() else []


@pytest.fixture
def checked(monkeypatch, tmp_path):
    made = Checked(tmp_path / "checked.txt")
    monkeypatch.setattr(oracles, "check", made)
    # The script of a finding is not run: its own tests do that, with a new interpreter each.
    monkeypatch.setattr("pytest_regional.fuzz.findings.folder.shows", lambda *_: True)
    return made


@pytest.fixture
def draws(monkeypatch):
    """Return what has all shards draw given programs in turns."""

    def draw(*programs):
        monkeypatch.setattr(shard_worker, "random_programs", lambda seed, options: itertools.cycle(programs))

    draw(chain("neg"))
    return draw


@pytest.fixture
def campaign(tmp_path):
    return CampaignFolder.begun(tmp_path / "findings", PLAN, None)[0]


def worker(campaign, stop=None, **options):
    work = Work(PLAN, campaign.identity, campaign.findings, range(10**6), **{"programs": 50, **options})
    return shard_worker.Worker(work, stop or threading.Event())


def progress(campaign):
    return [campaign.progress(shard).done for shard in range(3)]


def test_all_programs_are_checked_and_a_failure_is_one_finding(campaign, checked, draws):
    draws(chain("neg"), chain("neg", "sin"))

    assert worker(campaign).run() == DONE

    (finding,) = FindingsFolder(campaign.findings)
    assert finding.program.operators == ("sin",)
    assert progress(campaign) == [20, 20, 10]
    total = campaign.total()
    assert (total.done, total.examples + total.skipped_known) == (50, 50)
    assert total.skipped_known  # programs that show a finding with many hits
    before = checked.programs

    worker(campaign).run()

    assert checked.programs == before  # nothing was left


def test_what_is_known_is_not_reduced_again(campaign, checked, draws):
    draws(chain("sin"))
    worker(campaign, programs=1).run()
    times = {path: path.stat().st_mtime_ns for path in FindingsFolder(campaign.findings).paths()}
    other, _ = CampaignFolder.begun(campaign.findings, PLAN, 5)
    before = len(checked.programs)

    worker(other, programs=1).run()

    assert len(checked.programs) == before + 1
    assert {path: path.stat().st_mtime_ns for path in FindingsFolder(campaign.findings).paths()} == times


def killed(run):
    """Run something in a child, which has to be killed."""
    child = os.fork()
    if not child:
        run()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_kills_lose_nothing_but_the_program_in_progress(campaign, checked, draws):
    programs = [chain(*["neg"] * (1 + number)) for number in range(19)]
    draws(*programs, chain("neg", "sin", "neg"))
    expected = [line(program) for program in programs]
    for place in (1, 7, 12, 23, 25):  # at the fourth the failing program is checked, at the fifth it is reduced
        checked.then = {place: lambda: os.kill(os.getpid(), signal.SIGKILL)}
        killed(worker(campaign, programs=20).run)
    assert campaign.progress(0).done == 19
    assert checked.programs[:22] == expected[:1] + expected[:6] + expected[5:10] + expected[9:]
    checked.then = {}

    worker(campaign, programs=20).run()

    assert campaign.progress(0).done == 20
    assert [one.program.operators for one in FindingsFolder(campaign.findings)] == [("sin",)]


def test_twenty_kills_at_random(campaign, checked, draws):
    draws(*[chain("neg", "sin") if number == 7 else chain(*["neg"] * (1 + number)) for number in range(20)])
    chance, killed_at = random.Random(0), Counter()
    for _ in range(20):
        checked.then = {len(checked.programs) + chance.randint(1, 4): lambda: os.kill(os.getpid(), signal.SIGKILL)}
        killed(worker(campaign, programs=60).run)
        killed_at[checked.programs[-1]] += 1
    checked.then = {}

    worker(campaign, programs=60).run()

    assert progress(campaign) == [20, 20, 20]
    assert [one.program.operators for one in FindingsFolder(campaign.findings)] == [("sin",)]
    plain = {" ".join(["neg"] * (1 + number)) for number in range(2, 20) if number != 7}  # shorter ones are candidates
    assert {one: checked.programs.count(one) for one in plain} == {one: 3 + killed_at[one] for one in plain}


def test_a_stopped_process_finishes_its_program(campaign, checked, draws):
    stop = threading.Event()
    checked.then = {3: stop.set}

    worker(campaign, stop).run()

    assert progress(campaign) == [3, 0, 0]


def test_time_ends_it(campaign, checked, draws):
    worker(campaign, seconds=0.0).run()

    assert not checked.programs


def test_a_process_that_has_grown_asks_for_another_after_its_shard(campaign, checked, draws):
    assert worker(campaign, memory=2**20).run() == GROWN
    assert progress(campaign) == [20, 0, 0]


def test_what_a_process_died_of_is_kept_as_it_is(campaign, checked, draws):
    draws(chain("neg", "sin"))
    campaign.write(0, Progress(deaths=1))

    worker(campaign, programs=1).run()

    (finding,) = FindingsFolder(campaign.findings)
    assert finding.program.operators == ("neg", "sin")
    assert campaign.progress(0) == replace(campaign.progress(0), done=1, deaths=0)


def test_an_error_of_a_check_leaves_the_program_for_whoever_started_it(campaign, checked, draws):
    def fail():
        raise ZeroDivisionError

    checked.then = {2: fail}

    with pytest.raises(ZeroDivisionError):
        worker(campaign).run()
    (marker,) = campaign.path.glob("checking/*.json")
    assert json.loads(marker.read_text())["steps"]
    assert progress(campaign) == [1, 0, 0]


def test_the_same_command_goes_on_from_the_same_seed(tmp_path):
    first, plan = CampaignFolder.begun(tmp_path, PLAN, None)
    again, same = CampaignFolder.begun(tmp_path, replace(PLAN, seed=99), None)
    other, asked = CampaignFolder.begun(tmp_path, replace(PLAN, seed=99), 99)

    assert (again.path, same) == (first.path, plan)
    assert (other.path != first.path, asked.seed) == (True, 99)
    assert plan.seed_of(0) != plan.seed_of(1) != asked.seed_of(1)
    assert Path(tmp_path, "campaigns", ".gitignore").read_text() == "*\n"


def test_two_commands_do_not_work_on_one_campaign(campaign, monkeypatch):
    monkeypatch.setattr("pytest_regional.fuzz.shards.LOCK_SECONDS", 0.0)

    with campaign.locked(), pytest.raises(RegionalRuntimeError, match="another command works on this campaign"):
        campaign.locked().__enter__()


def test_a_damaged_file_is_named(campaign):
    campaign.file(0).write_text("{")

    with pytest.raises(DocumentError, match=r"shard-00000.json is no.* Delete it"):
        campaign.total()
