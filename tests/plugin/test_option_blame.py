"""``--regional-blame``: what a failure says, what the JSON report holds, and what is no depth."""

from __future__ import annotations

import json

import pytest

WRONG = """
    import torch

    @pytest.mark.regional_compile(expects_regions=False)
    def test_product(regional):
        regional.assert_parity(lambda x: torch.ones_like(x) * x, regional.randn(4))
"""
NAMED = "*blame: joint-graph pass constant_fold_uniform_value: right where that is left out (confirmed)"


def test_deep(downstream, pytester):
    result = downstream(WRONG, "--regional-backend=inductor", "--regional-blame=deep", "--regional-report=run.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([NAMED, "*the same * nothing changed"])
    (test,) = json.loads((pytester.path / "run.json").read_text())["tests"]
    (culprit,) = test["culprits"]
    assert (culprit["layer"], culprit["steps"]) == ("pass", ["joint_graph_pass constant_fold_uniform_value"])
    assert test["counters"]["region_compiles"] == 1


def test_ini(downstream, pytester):
    pytester.makeini("[pytest]\nregional_blame = deep\n")
    downstream(WRONG, "--regional-backend=inductor").stdout.fnmatch_lines([NAMED])


@pytest.mark.parametrize(("depth", "said"), [("off", False), ("region", True)])
def test_less(downstream, pytester, depth, said):
    arguments = ("--regional-backend=inductor", f"--regional-blame={depth}", "--regional-report=run.json")
    assert ("blame: no region" in downstream(WRONG, *arguments).stdout.str()) == said
    (test,) = json.loads((pytester.path / "run.json").read_text())["tests"]
    assert "culprits" not in test


def test_what_is_no_depth(downstream):
    result = downstream(WRONG, "--regional-blame=deeper")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--regional-blame=deeper: expected one of off, region, deep*"])
