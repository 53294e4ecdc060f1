"""``--regional-device`` and its ini twin."""

from __future__ import annotations

import pytest
import torch

TEST = """
    @pytest.mark.regional_compile(expects_regions=False)
    def test_it(regional, regional_device):
        assert regional.randn(2).device == regional.device == regional_device
        print("on", regional_device)
"""


@pytest.mark.parametrize("arguments", [["--regional-device=cpu"], []])
def test_one_device(downstream, arguments):
    result = downstream(TEST, "--regional-backend=aot_eager", "-s", *arguments)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"*on {'cpu' if arguments or not torch.cuda.is_available() else 'cuda'}*"])


def test_several_devices_and_backends_are_in_the_ids(downstream):
    result = downstream(TEST, "--regional-backend=aot_eager,torch", "--regional-device=auto,cpu", "-v")
    result.stdout.fnmatch_lines(["*test_it?aot_eager-auto? PASSED*", "*test_it?torch-cpu? PASSED*"])
    result.assert_outcomes(passed=4)


def test_ini(downstream, pytester):
    pytester.makeini("[pytest]\nregional_backend = aot_eager\nregional_device = cpu\n")
    downstream(TEST).stdout.fnmatch_lines(["*device cpu;*"])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("cdua", "*unknown device 'cdua'. Did you mean 'cuda'*Known: auto, cpu, cuda*"),
        ("gpu", "*unknown device 'gpu'. Did you mean 'cuda'*"),
        ("cpu,cpu", "*cpu is listed twice*"),
    ],
)
def test_a_wrong_value_is_a_usage_error(downstream, value, message):
    result = downstream(TEST, "--regional-backend=aot_eager", f"--regional-device={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU: the error is for those that have none")
def test_cuda_without_a_gpu_is_a_usage_error(downstream):
    result = downstream(TEST, "--regional-backend=aot_eager", "--regional-device=cuda")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*finds no usable GPU here*"])


def test_a_wrong_value_is_a_usage_error_with_the_plugin_off_too(downstream):
    result = downstream(TEST, "--regional-device=cdua")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unknown device 'cdua'*"])
