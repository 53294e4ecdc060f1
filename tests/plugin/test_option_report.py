"""``--regional-report``: the results as JSON, of all workers."""

from __future__ import annotations

import json

import pytest

SOURCE = """
    @pytest.mark.regional_compile(expects_regions=False)
    @pytest.mark.parametrize("n", [2, 3])
    def test_parity(regional, n):
        regional.assert_parity(block, *pair(regional, n))

    @pytest.mark.regional_compile(expects_regions=False)
    def test_wrong(regional):
        assert False

    @pytest.mark.regional_compile(requires=("regions",))
    def test_skipped(regional):
        pass

    def test_of_somebody_else():
        pass
"""
OUTCOMES = {"test_parity": "passed", "test_wrong": "failed", "test_skipped": "skipped"}


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["serial", "n2"])
def test_the_results_are_written(downstream, pytester, workers):
    downstream(SOURCE, "--regional-backend=aot_eager", "--regional-report=out/report.json", *workers, subprocess=True)

    report = json.loads((pytester.path / "out" / "report.json").read_text())
    assert (report["version"], report["lost_workers"], report["merged_from"]) == (1, 0, 1)
    assert report["options"]["backends"] == ["aot_eager"]
    assert report["versions"]["torch"].startswith("2.")
    ended = {test["test"].partition("::")[2].partition("[")[0]: test["outcome"] for test in report["tests"]}
    assert ended == OUTCOMES
    assert len(report["tests"]) == 4
    parity = next(test for test in report["tests"] if "parity" in test["test"])
    assert (parity["backend"], parity["device"], parity["counters"]["graphs"]) == ("aot_eager", "cpu", 1)
    assert parity["worst_parity"] <= 1


@pytest.mark.parametrize(
    ("name", "said"),
    [("report.txt", "expected a name that ends in .json"), ("test_it.py/a.json", "*is no folder for that")],
)
def test_a_file_that_cannot_be_written_is_a_usage_error(downstream, name, said):
    result = downstream(SOURCE, "--regional-backend=aot_eager", f"--regional-report={name}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*--regional-report*{said}*"])
