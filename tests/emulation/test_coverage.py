"""A small part of the coverage table, for every run; ``bench/emulated_coverage.py`` runs all of it."""

import dataclasses

import pytest
import torch

from pytest_regional.emulation import UnsupportedByEmulationError
from tests.emulation.functions import CASES
from tests.emulation.functions.case import Case, Defect
from tests.emulation.functions.inputs import normal
from tests.emulation.functions.judging import MismatchError, in_eager, verify
from tests.emulation.functions.outcome import (
    DEFECT,
    MATCH,
    UNSUPPORTED,
    WRONG,
    Run,
    all_runs,
    outcome_of,
    outcome_on_gpu,
)

CHOSEN = (
    "activations-f32-backward",
    "arithmetic_int8-f32",
    "layer_norm_looped-bf16-backward",
    "split_scan-f64",
    "sort_ties-f32",
    "index_put_accumulate-bf16",
    "three_tiles-f64",
    "convolution-f32-backward",
    "dropout-f32-backward",
    "user_kernel_product-bf16",
    "foreach_in_place-f32",
    "dynamic_reduction-f64",
    "index_out_of_bounds-f32",
)
DOUBLED = Case("doubled", lambda a: a * 2, normal((50,)))


@pytest.mark.parametrize("run", CHOSEN)
def test_matches(emulation, run):
    outcome = outcome_of(Run.named(run), emulation)
    assert outcome.status == MATCH, outcome.detail


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
def test_without_a_gpu_nothing_matches_on_one():
    assert outcome_on_gpu(Run("rotary", "f32")).status == WRONG
    assert outcome_on_gpu(Run("index_out_of_bounds", "f32")).status == UNSUPPORTED


def test_the_table_is_as_large_as_promised():
    runs = all_runs()
    for backward, functions in ((False, 110), (True, 35)):
        for dtype, share in (("f32", 1.0), ("bf16", 0.7), ("f64", 0.7)):
            count = len({run.name for run in runs if (run.dtype, run.backward) == (dtype, backward)})
            assert count >= functions * share, (dtype, backward, count)


def test_names_of_runs_are_read_back():
    assert all(Run.named(str(run)) == run for run in all_runs())


@pytest.mark.parametrize("name", ["gelu", "cross_entropy", "flex_grouped", "changed_through_a_view", "rotary"])
def test_eager_agrees_with_itself(name):
    """Both what the table compares with and how it compares: without a compiler nothing is wrong."""
    for run in all_runs():
        if run.name == name:
            verify(in_eager(CASES[name]), run.dtype, run.backward, compile=lambda function, **options: function)


def wrongly(transform):
    return lambda function, **options: lambda *inputs: transform(function(*inputs), *inputs)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (lambda out, a: out * (1 + 1e-5), "relative error 1.00e-05"),
        (lambda out, a: out.double(), "dtype"),
        (lambda out, a: out[:49], "shape"),
        (lambda out, a: a.mul_(2), "share memory"),
        (lambda out, a: (a.add_(1), out)[1], "input 0"),
        (lambda out, a: torch.where(torch.arange(50) == 3, torch.nan, out), "nan"),
        (lambda out, a: (out, out), "output 1"),
    ],
)
def test_a_wrong_result_is_a_mismatch(transform, message):
    with pytest.raises(MismatchError, match=message):
        verify(DOUBLED, "f32", False, compile=wrongly(transform))


@pytest.mark.parametrize(("dtype", "error"), [("f32", 1e-6), ("f64", 1e-13), ("bf16", 0.02)])
def test_the_tolerance_is_that_of_the_dtype(dtype, error):
    with pytest.raises(MismatchError):
        verify(DOUBLED, dtype, False, compile=wrongly(lambda out, a: out * (1 + error)))


def test_a_wrong_gradient_is_a_mismatch():
    def compile(function, **options):
        return lambda a: function(a) + (a - a.detach()) * 1e-3

    verify(DOUBLED, "f32", False, compile=compile)
    with pytest.raises(MismatchError, match="gradient 0"):
        verify(DOUBLED, "f32", True, compile=compile)


def outcome_where(monkeypatch, emulation, behaviour, **changes):
    monkeypatch.setitem(CASES, "doubled", dataclasses.replace(DOUBLED, **changes))
    monkeypatch.setattr("tests.emulation.functions.outcome.verify", behaviour)
    return outcome_of(Run("doubled", "f32"), emulation)


def raising(error):
    def verify(*args):
        raise error

    return verify


def test_a_match_without_kernels_is_wrong(monkeypatch, emulation):
    found = outcome_where(monkeypatch, emulation, lambda *args: 0.0)
    assert (found.status, found.detail) == (WRONG, "0 kernels generated, 0 launches: nothing was emulated")
    assert outcome_where(monkeypatch, emulation, lambda *args: 0.0, kernels=False).status == MATCH


def test_a_refusal_is_unsupported_with_its_reason(monkeypatch, emulation):
    wrapped = RuntimeError("backend failed")
    wrapped.__cause__ = UnsupportedByEmulationError("tl.this_and_that")
    found = outcome_where(monkeypatch, emulation, raising(wrapped))
    assert (found.status, found.detail) == (UNSUPPORTED, "tl.this_and_that")
    assert outcome_where(monkeypatch, emulation, raising(RuntimeError("backend failed"))).status == WRONG


def test_a_defect_of_pytorch_is_expected_strictly(monkeypatch, emulation):
    defect = Defect("swapped_inputs", mended=(99, 0))
    found = outcome_where(monkeypatch, emulation, raising(MismatchError("other")), defect=defect, kernels=False)
    assert found.status == DEFECT
    assert outcome_where(monkeypatch, emulation, lambda *args: 0.0, defect=defect, kernels=False).status == WRONG
    assert outcome_where(monkeypatch, emulation, raising(RuntimeError("else")), defect=defect).status == WRONG
