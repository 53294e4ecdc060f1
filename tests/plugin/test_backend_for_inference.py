"""A backend that disclaims the backward, under an audit too."""

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
