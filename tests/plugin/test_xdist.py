"""Under pytest-xdist: the same results and reports, folders of their own, nothing left behind."""

from __future__ import annotations

import json
import os
import textwrap
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.warm_process import run_module

from .conftest import HEADER, PROGRAM

SOURCE = """
    import os

    @pytest.mark.regional_compile
    @pytest.mark.parametrize("n", [2, 3, 4, 5])
    def test_parity(regional, n):
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        assert f"/{worker}/tests/" in os.environ["TORCHINDUCTOR_CACHE_DIR"]
        assert os.environ["CUDA_VISIBLE_DEVICES"] == {"main": "5,3", "gw0": "5", "gw1": "3"}[worker]
        with regional.expect(region_compiles=1, region_cache_hits=0):
            regional.assert_parity(block, *pair(regional, n))

    @pytest.mark.regional_compile
    def test_vacuous(regional):
        pass

    @pytest.mark.regional_compile(requires=("share_identical",))
    def test_skipped(regional):
        pass

    def test_of_somebody_else():
        pass
"""


@dataclass(frozen=True)
class Run:
    """A run that has ended: its folder, the folder of temporary files, and what it printed."""

    folder: Path
    temporary: Path
    lines: pytest.LineMatcher


@pytest.fixture(scope="module", params=[(), ("-n2",)], ids=["serial", "n2"])
def run(request, tmp_path_factory):
    """One run that writes all it can write, for all who read it."""
    folder, temporary = tmp_path_factory.mktemp("run"), tmp_path_factory.mktemp("temporary")
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "program.py").write_text(PROGRAM)
    (folder / "test_it.py").write_text(HEADER + textwrap.dedent(SOURCE))
    options = ("--regional-backend=torch", "--regional-device=cpu", "-p", "no:randomly", "-p", "no:cacheprovider")
    reports = ("--junit-xml=result.xml", "--regional-report=out/report.json")
    # Of the outer run's worker, if any, the inner one must not take itself for a worker.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    environment |= {"TMPDIR": str(temporary), "CUDA_VISIBLE_DEVICES": "5,3"}
    done = run_module("pytest", [*options, *reports, *request.param], folder, environment)
    return Run(folder, temporary, pytest.LineMatcher(done.stdout.splitlines()))


def test_the_same_results(run):
    run.lines.fnmatch_lines(["it *4 passed, 1 failed, 1 skipped*", "4 region compiles, *"])
    run.lines.fnmatch_lines(["*= 1 failed, 5 passed, 1 skipped*"])


def test_nothing_is_left_behind(run):
    assert [path.name for path in run.temporary.iterdir() if path.name.startswith("pytest-regional")] == []
    written = {path.name for path in run.folder.iterdir() if path.name != "__pycache__"}
    assert written == {"pytest.ini", "program.py", "test_it.py", "result.xml", "out"}


def test_junit_properties_of_tests_and_of_the_run(run):
    suite = ElementTree.parse(run.folder / "result.xml").getroot().find("testsuite")
    properties = {found.get("name"): found.get("value") for found in suite.findall("properties/property")}
    assert properties["regional.torch.cpu.passed"] == "4"
    assert properties["regional.torch.cpu.failed"] == "1"
    assert properties["regional.region_compiles"] == "4"
    case = next(case for case in suite.iter("testcase") if "test_parity" in case.get("name"))
    of_test = {found.get("name"): found.get("value") for found in case.iter("property")}
    assert (of_test["regional_backend"], of_test["regional_region_compiles"]) == ("torch", "1")
    assert float(of_test["regional_worst_parity"]) <= 1


def test_the_report_of_all_workers(run):
    report = json.loads((run.folder / "out" / "report.json").read_text())
    assert (report["version"], report["lost_workers"], report["merged_from"]) == (1, 0, 1)
    assert report["options"]["backends"] == ["torch"]
    assert report["versions"]["torch"].startswith("2.")
    ended = {test["test"].partition("::")[2].partition("[")[0]: test["outcome"] for test in report["tests"]}
    assert ended == {"test_parity": "passed", "test_vacuous": "failed", "test_skipped": "skipped"}
    assert len(report["tests"]) == 6
    parity = next(test for test in report["tests"] if "parity" in test["test"])
    assert (parity["backend"], parity["device"], parity["counters"]["graphs"]) == ("torch", "cpu", 1)
    assert parity["worst_parity"] <= 1


def test_a_crashing_worker_does_not_lose_the_others_facts(downstream):
    """Nor the shards of a fuzz test; and of a fuzz test that crashed stays the program that was checked."""
    result = downstream(
        """
        import os
        from pytest_regional.fuzz.model.arguments import TensorInput
        from pytest_regional.fuzz.model.program import Program, Step

        @pytest.mark.regional_compile
        @pytest.mark.parametrize("n", [2, 3])
        def test_parity(regional, n):
            regional.compile(block)(*pair(regional, n))

        @pytest.mark.regional_compile(backend="aot_eager", expects_regions=False)
        def test_any(regional_fuzz):
            regional_fuzz.run("native", draw=programs, oracles=("compiles", "parity"))

        def programs(seed):
            while True:
                yield Program((TensorInput((4,)),), (Step("neg", (0,), (), (1,)),), (1,), training=False)

        def crash(*args, **options):
            os._exit(3)

        @pytest.mark.regional_compile(expects_regions=False)
        def test_crash(regional_fuzz, monkeypatch):
            if regional_fuzz.shard == 1:
                monkeypatch.setattr("pytest_regional.fuzz.oracles.check", crash)
                regional_fuzz.run("native", draw=programs)
        """,
        "--regional-backend=torch",
        "--regional-device=cpu",
        "--regional-fuzz=5",
        "--regional-seed=7",
        "-n2",
        subprocess=True,
    )
    result.stdout.fnmatch_lines(
        [
            "*worker 'gw*' crashed*",
            "it *2 passed, 1 failed, 1 crashed*",
            "*1 workers were lost: the totals are incomplete*",
            "aot_eager (cpu), it, mode native: 5 programs in *, 0 failed, 0 new findings",
            "a process died while it checked the program in */regional-findings/checking/native-1-*.json:",
            "*torch.neg(x0)",
        ]
    )


@pytest.mark.slow(
    "starts runs with two workers, which import torch",
    fast="tests/plugin/test_option_gpus.py::test_a_worker_that_replaces_another_has_its_place",
)
def test_a_worker_that_replaces_a_dead_one_has_its_gpu(downstream, pytester, monkeypatch):
    """And not that of a living one, which the number in its name would give it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,3")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # of the run that this test is part of
    downstream(
        """
        import os, pathlib, time

        WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")
        pathlib.Path(WORKER + ".gpu").write_text(os.environ["CUDA_VISIBLE_DEVICES"])

        @pytest.mark.parametrize("n", range(4))
        def test_crash(n):
            if WORKER == "gw1":
                os._exit(3)
            give_up = time.monotonic() + 60
            while not pathlib.Path("gw2.gpu").exists() and time.monotonic() < give_up:
                time.sleep(0.05)
        """,
        "--regional-backend=aot_eager",
        "-n2",
        subprocess=True,
    )
    seen = {path.stem: path.read_text() for path in pytester.path.glob("*.gpu")}
    assert seen == {"gw0": "5", "gw1": "3", "gw2": "3"}
