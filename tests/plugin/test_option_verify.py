"""``--regional-verify``: kernels proved for all sizes while tests run."""

from __future__ import annotations

import importlib.util
import json
import re

import pytest

KERNELS = """
import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def without_mask(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at) * 2)


@triton.jit
def with_mask(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, at < n) * 2, at < n)


def program(kernel):
    def doubled(x):
        out = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
        return out + 1

    return doubled


@pytest.mark.regional_compile(dynamic=True, expects_regions=False)
@pytest.mark.parametrize("kernel", [without_mask, with_mask], ids=["without", "with"])
def test_doubled(regional, kernel):
    # At 128 elements, two whole blocks, both are right.
    regional.assert_parity(program(kernel), torch.ones(128))
"""

OPTIONS = ("--regional-backend=inductor", "--regional-device=cuda-emulated")


def test_a_kernel_that_is_refuted_for_another_size_fails_the_test(downstream, pytester):
    downstream(KERNELS, *OPTIONS).assert_outcomes(passed=2)  # at this size nothing is wrong

    result = downstream(KERNELS, *OPTIONS, "--regional-verify", "--regional-report=report.json")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.re_match_lines(
        [
            r".*KernelRefutedError: without_mask: memory, with s\d+ = \d+, program \(\d+, 0, 0\): out-of-bounds load: ",
            r"rerun: .*without.*--regional-verify=20.*",
            r"without_mask: memory refuted, races \w+, coverage unknown, .* s",
            r"\d+ distinct kernels verified, each with its configurations \(values are not verified\):",
            r"  memory: \d+ proved, 1 refuted",
        ]
    )
    tests = {test["test"]: test for test in json.loads((pytester.path / "report.json").read_text())["tests"]}
    (passed,) = (test for name, test in tests.items() if "with]" in name)
    outcomes = {proof["kernel"]: proof["outcomes"] for proof in passed["proofs"]}
    assert [one["verdict"] for one in outcomes["with_mask"]] == ["proved"] * 3


TIME = """
    @pytest.mark.regional_compile(expects_regions=False)
    def test_time(regional):
        regional.run(lambda x: x + 1, regional.randn(4))
        assert regional.verification.seconds == 2.5
"""


def test_the_time_for_a_kernel_can_be_given(downstream):
    downstream(TIME, *OPTIONS, "--regional-verify=2.5").assert_outcomes(passed=1)


COUNTED = """
import pytest
import torch


@pytest.mark.regional_compile(dynamic=True, expects_regions=False)
def test_questions(regional, monkeypatch):
    from pytest_regional.verify.question import Question

    ask, asked = Question.refute, []
    monkeypatch.setattr(Question, "refute", lambda self, *rest: asked.append(1) or ask(self, *rest))
    regional.run(lambda x: x.sin() * 3, regional.randn(40))
    assert [one.verdict for kernel in regional.verified_kernels() for one in kernel.outcomes] == ["proved"] * 4
    print("questions:", "some" if asked else "none")
"""


def test_a_process_that_knows_nothing_finds_what_is_kept(downstream, pytester, monkeypatch):
    from pytest_regional.verify import verifier

    monkeypatch.delenv("PYTEST_REGIONAL_KERNEL_STORE", raising=False)
    asked = []
    for _ in range(2):
        monkeypatch.setattr(verifier, "_KNOWN", {})
        result = downstream(COUNTED, *OPTIONS, "--regional-verify", "-s", "-oregional_kernel_store=kept")
        result.assert_outcomes(passed=1)
        asked.append(re.search(r"questions: (\w+)", result.stdout.str())[1])
    assert asked == ["some", "none"]
    assert any((pytester.path / "kept").iterdir())


@pytest.mark.slow(
    "starts four processes that import torch and z3", fast="test_a_process_that_knows_nothing_finds_what_is_kept"
)
def test_another_process_does_not_ask_again(downstream, pytester, monkeypatch):
    monkeypatch.delenv("PYTEST_REGIONAL_KERNEL_STORE", raising=False)

    def asked(store):
        options = (*OPTIONS, "--regional-verify", "-s", f"-oregional_kernel_store={store}")
        result = downstream(COUNTED, *options, subprocess=True)
        result.assert_outcomes(passed=1)
        return re.search(r"questions: (\w+)", result.stdout.str())[1]

    assert [asked(store) for store in ("kept", "kept", "off", "off")] == ["some", "none", "some", "some"]


NOTHING = """
    @pytest.mark.regional_compile(expects_regions=False)
    def test_nothing(regional):
        regional.run(lambda x: x + 1, regional.randn(4))
        assert list(regional.verified_kernels()) == [] and regional.verification is None
"""


def test_without_the_option_nothing_is_verified(downstream):
    downstream(NOTHING, *OPTIONS).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--regional-device=cuda", "--regional-verify"), "Triton kernels*give --regional-device=cuda-emulated"),
        (("--regional-device=cpu", "--regional-verify"), "Triton kernels*give --regional-device=cuda-emulated"),
        (("--regional-device=cuda-emulated", "--regional-verify=soon"), "--regional-verify=soon"),
        (("--regional-device=cuda-emulated", "--regional-verify="), "--regional-verify= has no value"),
    ],
    ids=["cuda", "cpu", "word", "empty"],
)
def test_what_cannot_be_verified_is_a_usage_error(downstream, options, message):
    result = downstream(NOTHING, "--regional-backend=inductor", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{message}*"])


def test_a_missing_solver_is_named_with_the_command_that_installs_it(downstream, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "z3" else found(name, *rest))
    result = downstream(NOTHING, *OPTIONS, "--regional-verify")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*pip install 'pytest-regional?verify?'*"])
