"""Workers on Ray, with a cluster that is not there: what the command says, and what becomes of actors that die."""

from types import SimpleNamespace

import pytest

from pytest_regional.fuzz.workers import ray_cluster
from pytest_regional.fuzz.workers.assignment import DONE, Assignment
from pytest_regional.fuzz.workers.plan import Part, Plan
from pytest_regional.fuzz.workers.ray_cluster import ClusterError, RayCluster

PLAN = Plan((Part("reference", "cpu", "interpret"),), 7)


class RayError(Exception):
    """What Ray raises."""


class FakeRay:
    """As much of Ray as a campaign uses: one actor, whose work ends as it is told to."""

    def __init__(self, outcome=None, init=lambda **options: None):
        self.outcome, self.init, self.asked, self.killed = outcome, init, [], []
        self.exceptions = SimpleNamespace(RayError=RayError)

    def remote(self, **options):
        self.options = options
        method = SimpleNamespace(remote=lambda *arguments: self.asked.append(arguments) or len(self.asked))
        actor = SimpleNamespace(work=method, stop=method, kill=method)
        return lambda cls: SimpleNamespace(remote=lambda *arguments: actor)

    def wait(self, futures, *, num_returns, timeout):
        return futures, []

    def get(self, future):
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def kill(self, actor):
        self.killed.append(actor)

    def shutdown(self):
        pass


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    """Return what makes a cluster of a fake Ray, with one worker."""

    def make(ray, address="ray://host:10001"):
        monkeypatch.setattr(ray_cluster.importlib, "import_module", lambda name: ray)
        made = RayCluster(address, 2, {"python": "python"}, {})
        made.start(Assignment("store", PLAN, "a", "place", "python", tmp_path))
        return made

    return make


def test_how_a_process_ended_comes_from_its_actor(cluster):
    ray = FakeRay((DONE, "", None))

    (ending,) = cluster(ray).endings()

    assert (ending.assignment.name, ending.status, ending.by_itself) == ("a", DONE, True)
    assert ray.options["max_restarts"] == 0
    assert len(ray.killed) == 1  # the actor: its core is free again


def test_a_worker_whose_actor_died_did_not_end_by_itself(cluster):
    made = cluster(FakeRay(RayError("\nThe actor died: its node was lost.\n\tclass_name: WorkerActor")))

    (ending,) = made.endings()

    assert (ending.status, ending.by_itself) == (None, False)
    assert ending.says == "its actor ended: The actor died: its node was lost."
    assert made.endings() == []


def test_a_cluster_that_does_not_answer(cluster):
    def init(**options):
        raise ConnectionError("ray client connection timeout\nmore")

    with pytest.raises(ClusterError) as caught:
        cluster(FakeRay(init=init))

    says = (
        "no Ray cluster answers at ray://host:10001: ConnectionError: ray client connection timeout. One that asks for"
    )
    assert str(caught.value).startswith(says)
    assert "RAY_AUTH_MODE=token" in str(caught.value)
