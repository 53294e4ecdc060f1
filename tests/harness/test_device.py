"""Devices under test: names, and what stands behind them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from pytest_regional._base.errors import RegionalValueError
from pytest_regional.harness.devices.device import DEFAULT_PROFILE, PROFILES, check_device_name, device_under_test

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")


@pytest.mark.parametrize(
    ("name", "profile"),
    [("cuda-emulated", "h200"), ("cuda-emulated:a100", "a100"), ("cuda-emulated:rtx4090", "rtx4090")],
)
def test_an_emulated_gpu_keeps_its_tensors_on_the_cpu(name, profile):
    found = device_under_test(name)
    assert (found.kind, found.profile, found.is_emulated, found.name) == ("cuda-emulated", profile, True, name)
    assert found.torch_device == torch.device("cpu")


@NO_GPU
@pytest.mark.parametrize("name", ["auto", "cpu"])
def test_without_a_gpu_auto_is_the_cpu(name):
    found = device_under_test(name)
    assert (found.name, found.kind, found.profile, found.is_emulated) == ("cpu", "cpu", None, False)


def test_with_a_gpu_auto_is_the_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_under_test("auto") == device_under_test("cuda")
    assert device_under_test("cuda").torch_device.type == "cuda"


@NO_GPU
def test_cuda_without_a_gpu_is_refused():
    with pytest.raises(RegionalValueError, match="finds no usable GPU here"):
        device_under_test("cuda")


@pytest.mark.parametrize(
    ("name", "near"), [("cuda-emulated:h20", "cuda-emulated:h200"), ("cuda-emulatd", "cuda-emulated"), ("cpu:0", "cpu")]
)
def test_a_misspelt_name_is_refused_with_the_nearest(name, near):
    with pytest.raises(RegionalValueError, match=f"Did you mean '{near}'"):
        check_device_name(name)


def test_names_are_checked_without_torch():
    check = (
        "import sys; from pytest_regional.harness.devices.device import check_device_name as c; c('cuda-emulated:a100')"
    )
    subprocess.run([sys.executable, "-c", f"{check}; assert 'torch' not in sys.modules"], check=True)


def test_the_default_is_a_device():
    assert DEFAULT_PROFILE in PROFILES
