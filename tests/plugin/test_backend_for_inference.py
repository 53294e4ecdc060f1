"""Backends that disclaim the backward, or that results are kept; under an audit too."""

from __future__ import annotations

INFERENCE = """
from pytest_regional import BackendSpec, GraphCapabilities, unsupported
import torch

class Inference(GraphCapabilities):
    @property
    def backward(self):
        return unsupported("for inference")

def backend(gm, inputs):
    def run(*inputs):
        with torch.no_grad():
            return gm.forward(*inputs)
    return run

spec = BackendSpec("inference", lambda: backend, Inference())
"""

TESTS = """
    def inputs(regional):
        return regional.randn(4, 8, requires_grad=True), regional.randn(8, 8)

    @pytest.mark.regional_compile
    def test_values(regional):
        regional.assert_parity(plain, *inputs(regional))

    @pytest.mark.regional_compile(requires=("backward",))
    def test_gradients(regional):
        regional.assert_parity(plain, *inputs(regional))
"""


def test_values_are_compared_and_gradients_skipped(downstream, pytester):
    pytester.makepyfile(mine=INFERENCE)
    downstream(TESTS, "--regional-backend=mine:spec").assert_outcomes(passed=1, skipped=1)


def test_an_audit_sees_that_gradients_are_missing(downstream, pytester):
    pytester.makepyfile(mine=INFERENCE)
    downstream(TESTS, "--regional-backend=mine:spec", "--regional-audit").assert_outcomes(passed=1, xfailed=1)


def test_an_audit_sees_that_gradients_are_there(downstream, pytester):
    pytester.makepyfile(mine=INFERENCE.replace("with torch.no_grad():", "if True:"))
    result = downstream(TESTS, "--regional-backend=mine:spec", "--regional-audit")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*audit: backend 'inference' disclaims backward*claim the capability*"])


POOLED = """
from pytest_regional import BackendSpec, GraphCapabilities, unsupported
import torch

class Pooled(GraphCapabilities):
    @property
    def results_kept(self):
        return unsupported("outputs are pooled")

def backend(gm, inputs):
    pool = []

    def run(*inputs):
        outputs = gm.forward(*inputs)
        pool.extend(map(torch.empty_like, outputs[len(pool):]))
        return [buffer.copy_(output) for buffer, output in zip(pool, outputs)]
    return run

spec = BackendSpec("pooled", lambda: backend, Pooled())
"""

KEPT = """
    def inputs(regional):
        return regional.randn(4, 8), regional.randn(8, 8)

    @pytest.mark.regional_compile
    def test_values(regional):
        regional.assert_parity(plain, *inputs(regional))

    @pytest.mark.regional_compile(requires=("results_kept",))
    def test_kept(regional):
        regional.assert_parity(plain, *inputs(regional))
"""


def test_results_that_do_not_last_are_compared_when_they_are_returned(downstream, pytester):
    pytester.makepyfile(mine=POOLED)
    downstream(KEPT, "--regional-backend=mine:spec").assert_outcomes(passed=1, skipped=1)


def test_an_audit_sees_that_they_do_not_last(downstream, pytester):
    pytester.makepyfile(mine=POOLED)
    downstream(KEPT, "--regional-backend=mine:spec", "--regional-audit").assert_outcomes(passed=1, xfailed=1)
