"""``device_requires`` and capabilities that depend on the device: asked when a test runs."""

from __future__ import annotations

import pytest

ON = ("--regional-backend=aot_eager", "--regional-device=cpu")


def test_a_device_that_does_not_do_is_a_skip_with_the_reason(downstream):
    source = """
        @pytest.mark.regional_compile(device_requires=("bf16", "compute_capability>=9.0"), expects_regions=False)
        def test_needs_a_gpu(regional):
            pytest.fail("it ran")

        @pytest.mark.regional_compile(device_requires="bf16", expects_regions=False)
        def test_runs(regional):
            pass
    """
    result = downstream(source, *ON)
    result.assert_outcomes(skipped=1, passed=1)
    result.stdout.fnmatch_lines(["SKIPPED*test_it.py*needs compute_capability>=9.0, the CPU has no compute_capability"])


def test_asked_inside_a_test(downstream):
    source = """
        @pytest.mark.regional_compile(expects_regions=False)
        def test_needs_a_gpu(regional):
            regional.require_device("cuda")
    """
    result = downstream(source, *ON)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*needs cuda, which the CPU has not"])


def test_a_misspelt_requirement_is_a_usage_error(downstream):
    result = downstream('@pytest.mark.regional_compile(device_requires="fp9")\ndef test_it(regional): pass', *ON)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_it*unknown device requirement 'fp9'. Did you mean 'fp8'*"])


@pytest.mark.parametrize(("audit", "outcome"), [((), "skipped"), (("--regional-audit",), "failed")])
def test_a_capability_that_the_device_lacks(downstream, audit, outcome):
    source = """
        @pytest.mark.regional_compile(requires="flex_attention_backward", expects_regions=False)
        def test_it(regional):
            pass
    """
    result = downstream(source, *ON, *audit)
    result.assert_outcomes(**{outcome: 1})
    result.stdout.fnmatch_lines(["*device 'cpu' has no flex_attention_backward: torch refuses*"])


def test_on_an_emulated_gpu_it_runs(downstream):
    source = """
        @pytest.mark.regional_compile(
            requires="flex_attention_backward", device_requires="fp8", device="cuda-emulated", expects_regions=False
        )
        def test_it(regional):
            assert regional.require_device().compute_capability == (9, 0)
    """
    downstream(source, "--regional-backend=aot_eager").assert_outcomes(passed=1)


def test_tests_on_a_lost_gpu_fail_with_what_lost_it(downstream, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("pytest_regional.plugin.running.lost", lambda: "test_bad left the GPU with an error")
    source = """
        @pytest.mark.regional_compile(expects_regions=False)
        @pytest.mark.parametrize("number", [1, 2])
        def test_it(number):
            pass
    """
    result = downstream(source, "--regional-backend=aot_eager", "--regional-device=cuda")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*test_bad left the GPU with an error; the GPU is lost to this process*"])
