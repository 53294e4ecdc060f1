"""The processes of a campaign, on this machine and on a Ray cluster: they are started again, and crashes are kept."""

import io
import os
import pickle
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import pytest_regional.fuzz.processes as processes
import pytest_regional.fuzz.ray_cluster as ray_cluster
from pytest_regional._base.errors import RegionalRuntimeError
from pytest_regional.fuzz.findings import files
from pytest_regional.fuzz.findings.files import Signature
from pytest_regional.fuzz.findings.folder import Finding, FindingsFolder, merge
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Program, Step
from pytest_regional.fuzz.processes import Processes
from pytest_regional.fuzz.ray_cluster import RayCluster
from pytest_regional.fuzz.shards import CANNOT, CampaignFolder, Part, Plan, Work

ROOT = Path(__file__).parents[2]
PLAN = Plan((Part("aot_eager", "cpu", "native"),), 3, limit=1.0)


def program(*operators):
    steps = [Step(name, (place,), (), (place + 1,)) for place, name in enumerate(operators)]
    return Program((TensorInput((4,)),), tuple(steps), (len(steps),), training=False)


@pytest.fixture
def campaign(tmp_path):
    return CampaignFolder.begun(tmp_path / "findings", PLAN, None)[0]


@pytest.fixture
def lives(monkeypatch, tmp_path):
    """Return what says how the processes live; see ``fake_process``."""
    files.save(program("sin"), tmp_path / "program.json")
    monkeypatch.setattr(processes, "CHILD", "tests.fuzz.fake_process")
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    monkeypatch.setenv("FAKE_LIVES", str(tmp_path / "lives"))
    monkeypatch.setenv("FAKE_PROGRAM", str(tmp_path / "program.json"))

    def set_lives(*words):
        (tmp_path / "lives").write_text(" ".join(words))

    set_lives()
    return set_lives


def work(campaign, **options):
    plan = options.pop("plan", PLAN)
    return Work(plan, campaign.identity, campaign.findings, range(10**6), **{"programs": 50, **options})


def run(campaign, number=1, **options):
    with campaign.locked() as lock:
        Processes(work(campaign, **options), number, lock).run()


def crashes(campaign):
    return [finding.signature.origin for finding in FindingsFolder(campaign.findings / "crashes")]


def test_processes_divide_the_shards(campaign, lives):
    run(campaign, 2)

    assert (campaign.total().done, [campaign.progress(shard).done for shard in range(3)]) == (50, [20, 20, 10])


def test_a_process_that_has_grown_is_replaced(campaign, lives):
    lives("grows", "grows", "works")

    run(campaign)

    assert campaign.total().done == 50


@pytest.mark.parametrize(
    ("deaths", "said", "left"),
    [
        (["SIGSEGV"], ["the process ended by SIGSEGV"], 0),
        (["1"], ["the process ended with status 1"], 0),
        (["SIGKILL"], [], 0),  # somebody killed it
        (["SIGKILL", "SIGKILL"], ["the process ended by SIGKILL"], 1),
        (["SIGSEGV", "SIGSEGV"], ["the process ended by SIGSEGV"], 1),
    ],
)
def test_a_program_that_ends_its_process_is_checked_once_more_and_then_left(campaign, lives, deaths, said, left):
    lives(*deaths)

    run(campaign)

    assert crashes(campaign) == said
    assert campaign.total().done == 50
    assert campaign.total().examples == 50
    assert not list(campaign.path.glob("checking/*"))
    assert len(list(campaign.findings.glob("crashes/*"))) == 2 * len(said)  # data and script, named by the program


def test_what_a_killed_command_was_checking_is_checked_again(campaign, lives):
    (campaign.path / "checking").mkdir()
    (campaign.path / "checking" / "00001-77.json").write_text("{}")

    run(campaign)

    assert campaign.total().done == 50
    assert not crashes(campaign)


def test_processes_that_cannot_work_end_the_campaign(campaign, lives):
    lives("cannot")
    with pytest.raises(RegionalRuntimeError, match="RegionalError: there is no such backend"):
        run(campaign)

    lives("early-1", "early-SIGSEGV", "early-SIGSEGV")
    with pytest.raises(
        RegionalRuntimeError, match="3 processes in a row died outside of a check; the last one ended by SIG"
    ):
        run(campaign)


def test_a_process_that_cannot_work_says_why_and_no_more(campaign, monkeypatch, capsys):
    part = Part("no_such_module:it", "cpu", "native")
    asked = pickle.dumps(work(campaign, plan=replace(PLAN, parts=(part,)), scratch=campaign.path))
    monkeypatch.setattr(processes, "_end_with_parent", lambda: None)
    monkeypatch.setattr(processes.signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(processes.sys, "stdin", SimpleNamespace(buffer=io.BytesIO(asked)))
    monkeypatch.setattr(processes.sys, "path", [*processes.sys.path])

    assert processes.main() == CANNOT
    said = capsys.readouterr().err
    assert "backend 'no_such_module:it' could not be loaded: ModuleNotFoundError" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("life", ["waits", "starts"])
def test_a_stopped_campaign_waits_for_its_processes(campaign, lives, life):
    lives(*[life] * 20)  # several processes may take the same word
    with campaign.locked() as lock:
        made = Processes(work(campaign), 3, lock)
        threading.Timer(3.0, made.stop).start()
        begun = time.monotonic()
        made.run()

    assert time.monotonic() - begun < 50
    assert campaign.total().done == 0


@pytest.mark.parametrize("kind", ["spins", "waits"])
def test_a_process_that_is_stuck_is_killed(campaign, lives, monkeypatch, kind):
    used, now = iter([5.0, 6.0, 9.5, 9.5, 9.5]), iter([0.0, 10.0, 20.0, 319.0, 321.0])
    monkeypatch.setattr(processes, "cpu_seconds_of", lambda number: next(used))
    monkeypatch.setattr(processes.time, "monotonic", lambda: next(now))
    monkeypatch.setattr(processes, "_STUCK_FACTOR", 3.0 if kind == "spins" else 9.0)
    (campaign.path / "checking").mkdir()
    running = processes._Running(work(campaign), SimpleNamespace(pid=77))
    made = Processes(work(campaign), 1, 0)
    assert not made._is_stuck(running)  # it checks nothing

    marker = campaign.path / "checking" / "00001-77.json"
    marker.write_text("{}")
    os.utime(marker, (1, 1))  # since when, by the clock, says nothing

    assert not made._is_stuck(running)  # 6 s were used before
    assert made._is_stuck(running) == (kind == "spins")  # 3.5 s, where a program has one
    if kind == "waits":
        assert not made._is_stuck(running)
        assert made._is_stuck(running)  # nothing in 301 s


def finding(*operators, detail="it differs"):
    made = program(*operators)
    return Finding(Signature("parity", "run", "value of output"), made, made, detail)


def test_folders_are_merged_into_the_smallest_finding_of_each_name(tmp_path):
    small, large, into = (FindingsFolder(tmp_path / name) for name in ("small", "large", "into"))
    small.save(finding("sin"))
    large.save(finding("sin", "neg"))
    FindingsFolder(large.path / "crashes").save(finding("exp"), "crash")

    assert merge(large.path, into.path) == ["reference-parity-run-" + finding().name[-8:], "crash"]
    assert merge(small.path, into.path) == []
    assert merge(large.path, into.path) == []
    assert [one.program.operators for one in into] == [("sin",)]
    (script,) = into.path.glob("*.py")
    assert script.read_text() == (small.path / script.name).read_text()


class FakeRay:
    """As much of Ray as a campaign uses; tasks run in this process, when their result is asked for."""

    class exceptions:
        class RayError(Exception):
            pass

        class RayTaskError(RayError):
            pass

    def __init__(self, lost=()):
        self.lost, self.asked, self.options = set(lost), [], {}

    def init(self, **options):
        pass

    def cluster_resources(self):
        return {"CPU": 2.0}

    def remote(self, **options):
        self.options = options

        def task(function):
            def start(*arguments):
                self.asked.append((function, arguments))
                return len(self.asked) - 1

            return SimpleNamespace(remote=start)

        return task

    def wait(self, futures, *, num_returns, timeout):
        return futures[:num_returns], futures[num_returns:]

    def get(self, future):
        if future in self.lost:
            raise self.exceptions.RayError("the node died\nand more")
        function, arguments = self.asked[future]
        try:
            return function(*arguments)
        except RegionalRuntimeError as error:
            wrapped = self.exceptions.RayTaskError()
            wrapped.cause = error
            raise wrapped from error


@pytest.fixture
def cluster(monkeypatch):
    """Return what makes a cluster of a fake Ray."""

    def make(ray):
        monkeypatch.setattr(ray_cluster.importlib, "import_module", lambda name: ray)
        return RayCluster("ray://host:10001", None)

    return make


def test_a_cluster_checks_all_shards_and_returns_what_it_found(campaign, lives, cluster):
    FindingsFolder(campaign.findings).save(finding("sin"))
    lives("SIGSEGV")
    ray = FakeRay()

    cluster(ray).run(work(campaign, programs=150))

    assert [campaign.progress(shard).done for shard in range(8)] == [20] * 7 + [10]
    assert len(ray.asked) == 4  # two for each core
    assert ray.options == {"num_cpus": 1, "max_retries": 3}
    assert crashes(campaign) == ["the process ended by SIGSEGV"]
    assert sum(name.endswith(".json") and "/" not in name for name in ray.asked[0][1][1]) == 1  # what is known


def test_shards_that_ray_gave_up_are_checked_by_the_next_command(campaign, lives, cluster):
    with pytest.raises(RegionalRuntimeError, match=r"Ray gave up shards, .*; the last ones: the node died$"):
        cluster(FakeRay(lost=[0])).run(work(campaign, programs=150))
    assert campaign.total().done == 110

    cluster(FakeRay()).run(work(campaign, programs=150))

    assert campaign.total().done == 150


def test_a_cluster_that_cannot_work_says_why(campaign, lives, cluster):
    lives("cannot")

    with pytest.raises(RegionalRuntimeError, match="there is no such backend"):
        cluster(FakeRay()).run(work(campaign))


def test_a_cluster_that_does_not_answer(cluster):
    ray = FakeRay()
    ray.init = lambda **options: (_ for _ in ()).throw(ConnectionError("refused by user:hunter2@host"))

    with pytest.raises(
        RegionalRuntimeError, match="no Ray cluster answers at ray://host:10001: ConnectionError: refused"
    ):
        cluster(ray)
