"""What a test may leave changed, and what the next one sees of it; each kind in a process of its own.

``python -m tests.faults.leaks`` prints what becomes of each, and the counts.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_regional.harness.isolation import Snapshot, snapshot
from tests.docs.fenced import table
from tests.faults import leaks
from tests.faults.leaks import trials
from tests.warm_process import run_module

#: What the next test still sees; docs/faults.md has the reasons.
SEEN = {"context variable", "function at exit", "operator defined", "process", "thread"}

#: What is put back without a word: every test begins with numbers of its own, and with compilers that were reset.
SILENT = {
    "compile callback",
    "default generator's state",
    "random numbers of Python",
    "random numbers of numpy",
    "stacks later",
}

#: What cannot be put back.
POISON = {"threads between operators"}


@pytest.fixture(scope="module", autouse=True)
def _warm():
    trials.warm_up()


@pytest.mark.parametrize("name", leaks.KINDS)
def test_the_next_test_sees_nothing_of_it(name):
    found = trials.in_a_fork(leaks.KINDS[name])
    assert not found.error
    assert found.ends_the_worker == (name in POISON)
    assert found.seen == (name in SEEN | POISON)
    assert bool(found.named) == (name not in SILENT | SEEN - {"process", "thread"})


def test_an_unwatched_kind_is_detected():
    """What tells that the trials above can fail."""
    unknown: list[int] = []
    found = trials.in_a_fork(leaks.Kind("unknown", lambda: unknown.append(1), lambda: len(unknown)))
    assert (found.seen, tuple(found.named), found.error) == (True, (), "")


ONE_RUN = """
import time
import pytest
from tests.faults.leaks import KINDS
from tests.attacks.test_leaks import POISON, SEEN

pytestmark = pytest.mark.regional_compile(expects_regions=False)
BEFORE = {}

STEPS = [step for name in KINDS if name not in SEEN | POISON for step in (f"leak {name}", name)]

@pytest.mark.parametrize("step", STEPS)
def test_step(regional, step):
    name = step.removeprefix("leak ")
    if name == step:
        look = KINDS[name].look()
        assert look == BEFORE[name] or "random" in name or "generator" in name  # seeded by the test's own name
        regional.run(abs, regional.randn(2))
    else:
        BEFORE[name] = KINDS[name].look()
        KINDS[name].leak()

def test_process_lives_on():
    time.sleep(2)
"""


@pytest.mark.slow(
    "runs all leaks in a run",
    fast="tests/attacks/test_leaks_and_fixtures.py::test_only_changes_of_tests_are_restored",
)
def test_all_in_one_run(pytester):
    """In the order of the table, each kind with a test behind it that compiles."""
    pytester.makepyfile(test_it=ONE_RUN)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTEST_ADDOPTS": ""}
    options = ("-p", "no:randomly", "-p", "no:cacheprovider", "-q", "--regional-backend=aot_eager", "-n0")
    done = run_module("pytest", options, pytester.path, environment, timeout=300)
    tests = 2 * len(leaks.KINDS.keys() - SEEN - POISON) + 1
    assert f"\n{tests} passed" in done.stdout, done.stdout[-5000:]
    named = {name for name in leaks.KINDS if f"[leak {name}] left " in done.stdout}
    # pytest itself puts back standard output between the phases of a test.
    assert named == leaks.KINDS.keys() - SEEN - POISON - SILENT - {"sys.stdout"}


def test_this_torch_has_all_that_is_watched():
    assert Snapshot.take().watched == list(snapshot.WATCHED)


def test_what_this_torch_lacks_is_not_watched(monkeypatch):
    monkeypatch.delattr("torch._C._dynamo.eval_frame.get_eval_frame_callback")
    watched = snapshot.readable.__wrapped__(while_compiling=False)
    (_gone,) = (one for one in snapshot.WATCHED if one not in watched)
    assert len(watched) == len(snapshot.WATCHED) - 1


def test_what_is_seen_is_in_the_documentation():
    rows = table("docs/faults.md", "What the next test still sees")
    assert {row[0] for row in rows} == SEEN
    assert {row[0] for row in rows if row[1] == "yes"} == {"thread", "process"}
    assert f" {len(leaks.KINDS)} kinds" in Path("docs/faults.md").read_text()


def test_there_are_enough_kinds():
    assert len(leaks.KINDS) >= 59
    assert len(SEEN) <= 5
    assert leaks.KINDS.keys() > SEEN | SILENT | POISON
