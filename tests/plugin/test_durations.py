"""With pytest-xdist the tests that took longest in earlier runs begin first, on all workers."""

from __future__ import annotations

import json
import os
import textwrap
from types import SimpleNamespace
from typing import Any

import pytest
from xdist.scheduler import LoadScheduling, WorkStealingScheduling

from pytest_regional._durations import first_shares, ordered
from tests.warm_process import run_module

SOURCE = """
    import os, time

    @pytest.mark.parametrize("n", range(8))
    def test_short(n):
        note(f"short{n}")

    def test_long():
        note("long")
        time.sleep(1.1)

    def test_longer():
        note("longer")
        time.sleep(3)

    def note(name):
        with open(os.environ.get("PYTEST_XDIST_WORKER", "main"), "a") as file:
            print(name, file=file)
"""

ON = ("--regional-backend=aot_eager", "--regional-device=cpu", "-p", "no:randomly")
USUAL = [*(f"short{n}" for n in range(8)), "long", "longer"]


def run(folder, *options):
    """Run the tests; return in which order each process began them."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
    done = run_module("pytest", [f"--basetemp={folder / 'basetemp'}", *ON, *options], folder, environment)
    assert done.returncode == 0, done.stdout
    found = {}
    for name in ("main", "gw0", "gw1"):
        if (folder / name).exists():
            found[name] = (folder / name).read_text().split()
            (folder / name).unlink()
    return found


@pytest.fixture
def repository(tmp_path):
    (tmp_path / "test_it.py").write_text("import pytest\n" + textwrap.dedent(SOURCE))
    return tmp_path


@pytest.mark.parametrize("distribution", ["load", "worksteal"])
def test_the_longest_begin_first_from_the_second_run_on(repository, distribution):
    workers = ("-n2", f"--dist={distribution}")
    assert {orders[0] for orders in run(repository, *workers).values()}.isdisjoint({"long", "longer"})
    orders = run(repository, *workers)
    assert {orders["gw0"][0], orders["gw1"][0]} == {"longer", "long"}
    assert sorted(orders["gw0"] + orders["gw1"]) == sorted(USUAL)


def test_a_run_in_one_process_remembers_and_keeps_its_order(repository):
    for _ in range(2):
        assert run(repository) == {"main": USUAL}
    kept = json.loads((repository / ".pytest_cache/v/regional/durations").read_text())
    assert list(kept) == ["test_it.py::test_longer", "test_it.py::test_long"]
    assert all(1.0 <= seconds < 60 for seconds in kept.values())
    run(repository, "-k", "short or longer")
    kept = json.loads((repository / ".pytest_cache/v/regional/durations").read_text())
    assert set(kept) == {"test_it.py::test_longer", "test_it.py::test_long"}


@pytest.mark.parametrize("options", [("--dist=loadfile",), ("-p", "no:cacheprovider")], ids=["loadfile", "no cache"])
def test_other_runs_keep_their_order(repository, options):
    for _ in range(2):
        orders = run(repository, "-n2", *options)
        assert all(order == sorted(order, key=USUAL.index) for order in orders.values())


class Worker:
    """What a scheduler sends to one worker."""

    shutting_down = False

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.given: list[int] = []

    def send_runtest_some(self, tests: list[int]) -> None:
        self.given += tests

    def shutdown(self) -> None:
        self.shutting_down = True


@pytest.mark.parametrize(("name", "kind"), [("load", LoadScheduling), ("worksteal", WorkStealingScheduling)])
@pytest.mark.parametrize(("tests", "workers"), [(10, 2), (7, 3), (100, 4), (4, 2)])
def test_shares_are_those_of_the_scheduler(name: str, kind: Any, tests: int, workers: int):
    option = SimpleNamespace(maxschedchunk=None)
    value = {"tx": ["popen"] * workers}.get
    config = SimpleNamespace(getvalue=value, getoption=value, option=option)
    scheduler = kind(config, None)
    nodes = [Worker(f"gw{n}") for n in range(workers)]
    for node in nodes:
        scheduler.add_node(node)
    for node in nodes:
        scheduler.add_node_collection(node, [f"test{n}" for n in range(tests)])
    scheduler.schedule()
    assert [len(node.given) for node in nodes] == first_shares(tests, workers, name)


@pytest.mark.parametrize(
    ("seconds", "shares", "expected"),
    [
        ([0, 0, 0, 0], [2, 2], [0, 1, 2, 3]),
        ([0, 0, 5, 9], [2, 2], [3, 0, 2, 1]),
        ([0, 7, 0, 9, 8, 0], [2, 2], [3, 1, 4, 0, 2, 5]),
        # What is a fiftieth of all, or less, stays.
        ([1, 1, 1, 90], [1, 1], [3, 0, 1, 2]),
        # More long ones than the first shares hold.
        ([1, 2, 3, 4], [1, 1], [3, 2, 1, 0]),
    ],
)
def test_order(seconds, shares, expected):
    assert ordered(range(len(seconds)), seconds, shares) == expected
