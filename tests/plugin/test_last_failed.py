"""``--lf`` runs what failed, in a run with any other number of workers."""

from __future__ import annotations

import json

import pytest

from .conftest import in_a_process

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


def run(pytester, *options):
    result = in_a_process(
        pytester,
        "--regional-backend=aot_eager",
        "--regional-device=cpu",
        "-p",
        "no:randomly",
        "--regional-fuzz=3",
        *options,
    )
    counts = result.parseoutcomes()
    return result, {name: counts[name] for name in ("passed", "failed") if name in counts}


def failed(pytester):
    return set(json.loads((pytester.path / ".pytest_cache/v/cache/lastfailed").read_text()))


@pytest.mark.parametrize(("workers", "parts"), [("-n0", 1), ("-n3", 3)])
def test_what_failed_and_what_took_its_worker_run_again_and_nothing_else(repository, pytester, workers, parts):
    """Of a fuzz test all parts run that it has now: what one of two met, any of three may."""
    repository(SOURCE)
    assert run(pytester, "-n2")[1] == {"passed": 4, "failed": 3}
    assert failed(pytester) == {"test_it.py::test_some[2]", "test_it.py::test_dies", "test_it.py::test_fuzz[shard1]"}

    (pytester.path / "right").touch()
    result, counts = run(pytester, "--lf", workers)
    assert counts == {"passed": 1 + parts, "failed": 1}
    result.stdout.fnmatch_lines(["FAILED test_it.py::test_some[[]2]*"])
    assert failed(pytester) == {"test_it.py::test_some[2]"}


def test_a_parameter_that_is_called_like_a_part_stays_one(repository, pytester):
    repository(PARAMETERS)
    for options, counts in (((), {"passed": 2, "failed": 1}), (("--lf",), {"passed": 1, "failed": 1})):
        assert run(pytester, "-n0", *options)[1] == counts
        assert failed(pytester) == {"test_it.py::test_it[shard7]"}
