"""``--lf`` runs what failed, in a run with any other number of workers."""

from __future__ import annotations

import json
import os
import shutil
import textwrap

import pytest

from tests.warm_process import run_module

SOURCE = """
    import os

    @pytest.mark.regional_compile(expects_regions=False)
    @pytest.mark.parametrize("n", [1, 2, 3])
    def test_some(n):
        assert n != 2

    @pytest.mark.regional_compile(expects_regions=False)
    def test_dies(regional):
        if not os.path.exists("right"):
            os.kill(os.getpid(), 9)

    @pytest.mark.regional_compile(expects_regions=False)
    def test_right():
        pass

    @pytest.mark.regional_compile(expects_regions=False)
    def test_fuzz(regional_fuzz):
        assert os.path.exists("right") or regional_fuzz.shard == 0
        regional_fuzz.run("native", oracles=("compiles",))
"""

PARAMETERS = """
    @pytest.mark.regional_compile(expects_regions=False)
    def test_fuzz(regional_fuzz):
        regional_fuzz.run("native", oracles=("compiles",))

    @pytest.mark.regional_compile(expects_regions=False)
    @pytest.mark.parametrize("name", ["shard0", "shard7"])
    def test_it(name):
        assert name != "shard7"
"""


ON = (
    "--regional-backend=aot_eager",
    "--regional-device=cpu",
    "-p",
    "no:randomly",
    "--regional-fuzz=3",
    "--regional-seed=0",
)


def run(folder, *options):
    """Return what a run in ``folder`` printed, and how many tests passed and failed."""
    done = run_module("pytest", [f"--basetemp={folder / 'basetemp'}", *ON, *options], folder, os.environ)
    counts = pytest.RunResult.parse_summary_nouns(done.stdout.splitlines())
    return done.stdout, {name: counts[name] for name in ("passed", "failed") if name in counts}


def failed(folder):
    return set(json.loads((folder / ".pytest_cache/v/cache/lastfailed").read_text()))


def write(folder, source):
    (folder / "test_it.py").write_text("import pytest\n" + textwrap.dedent(source))
    return folder


@pytest.fixture(scope="module")
def failed_with_two_workers(tmp_path_factory):
    """A repository after a run in which tests failed: both runs of what failed begin with a copy of it."""
    folder = write(tmp_path_factory.mktemp("first"), SOURCE)
    assert run(folder, "-n2")[1] == {"passed": 4, "failed": 3}
    assert failed(folder) == {"test_it.py::test_some[2]", "test_it.py::test_dies", "test_it.py::test_fuzz[shard1]"}
    return folder


@pytest.mark.parametrize(("workers", "parts"), [("-n0", 1), ("-n3", 3)])
def test_what_failed_and_what_took_its_worker_run_again_and_nothing_else(
    failed_with_two_workers, tmp_path, workers, parts
):
    """Of a fuzz test all parts run that it has now: what one of two met, any of three may."""
    folder = shutil.copytree(failed_with_two_workers, tmp_path / "again")
    (folder / "right").touch()
    printed, counts = run(folder, "--lf", workers)
    assert counts == {"passed": 1 + parts, "failed": 1}, printed
    assert "FAILED test_it.py::test_some[2]" in printed
    assert failed(folder) == {"test_it.py::test_some[2]"}


def test_a_parameter_that_is_called_like_a_part_stays_one(tmp_path):
    folder = write(tmp_path, PARAMETERS)
    for options, counts in (((), {"passed": 2, "failed": 1}), (("--lf",), {"passed": 1, "failed": 1})):
        assert run(folder, "-n0", *options)[1] == counts
        assert failed(folder) == {"test_it.py::test_it[shard7]"}
