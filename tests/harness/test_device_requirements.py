"""What a test may need of its device."""

from __future__ import annotations

import subprocess
import sys
import unittest

import pytest
import torch

from pytest_regional._base.errors import RegionalValueError
from pytest_regional.emulation import PROFILES
from pytest_regional.harness.devices.device import (
    FEATURES,
    DeviceFacts,
    device_under_test,
    parse_requirement,
    unmet_requirement,
)
from pytest_regional.harness.devices.on_device import device_limit, facts_of
from pytest_regional.testing import regional

A100 = DeviceFacts("NVIDIA A100", "cuda", (8, 0), 80 << 30)
H200 = DeviceFacts("NVIDIA H200", "cuda", (9, 0), 140 << 30, devices=2)
EMULATED = DeviceFacts("NVIDIA H200 (emulated)", "cuda-emulated", (9, 0), 8 << 30)
CPU = DeviceFacts("the CPU", "cpu", None, 8 << 30)


@pytest.mark.parametrize(
    ("requirement", "facts", "reason"),
    [
        ("compute_capability>=9.0", A100, "needs compute_capability>=9.0, NVIDIA A100 has 8.0"),
        ("compute_capability>=8.0", A100, ""),
        ("compute_capability<9.0", H200, "needs compute_capability<9.0, NVIDIA H200 has 9.0"),
        ("compute_capability >= 10.0", H200, "needs compute_capability >= 10.0, NVIDIA H200 has 9.0"),
        ("compute_capability>=7.0", CPU, "needs compute_capability>=7.0, the CPU has no compute_capability"),
        ("memory>=16GiB", CPU, "needs memory>=16GiB, the CPU has 8.0 GiB"),
        ("memory>=16384MiB", H200, ""),
        ("devices>=2", H200, ""),
        ("devices>=2", A100, "needs devices>=2, NVIDIA A100 has 1"),
        ("fp8", A100, "needs fp8, which NVIDIA A100 has not"),
        ("fp8", CPU, ""),
        ("bf16", A100, ""),
        ("cuda", EMULATED, ""),
        ("cuda", CPU, "needs cuda, which the CPU has not"),
        ("real_cuda", EMULATED, "needs real_cuda, which NVIDIA H200 (emulated) has not"),
        ("flex_attention_backward", CPU, "needs flex_attention_backward, which the CPU has not"),
        ("tensor_descriptor", EMULATED, ""),
        ("tensor_descriptor", A100, "needs tensor_descriptor, which NVIDIA A100 has not"),
        ("tf32", A100, ""),
        ("tf32", EMULATED, "needs tf32, which NVIDIA H200 (emulated) has not"),
    ],
)
def test_requirements(requirement, facts, reason):
    assert parse_requirement(requirement).unmet(facts) == reason


def test_spaces_are_as_good_as_none():
    assert parse_requirement("memory >= 16 GiB").value == parse_requirement("memory>=16GiB").value


def test_the_first_unmet_requirement_is_the_reason():
    assert unmet_requirement(("cuda", "fp8", "devices>=3"), A100) == "needs fp8, which NVIDIA A100 has not"
    assert unmet_requirement((), CPU) == ""


@pytest.mark.parametrize("name", FEATURES)
def test_every_feature_tells_devices_apart_or_holds_everywhere(name):
    answers = {FEATURES[name][1](facts) for facts in (A100, H200, EMULATED, CPU)}
    assert answers == ({True} if name == "bf16" else {True, False})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("compute_capabilty>=8.9", "Did you mean 'compute_capability'"),
        ("fp9", "Did you mean 'fp8'"),
        ("memory", "memory is compared with >="),
        ("memory>=16", "'16' is not a valid value for memory, as in memory>=16GiB"),
        ("memory>=1TiB", "'1TiB' is not a valid value for memory"),
        ("compute_capability>=9", "as in compute_capability>=8.9"),
        ("compute_capability=>9.0", "is compared with >=, <=, ==, >, <: compute_capability>=8.9"),
        ("devices>=two", "as in devices>=2"),
        ("fp8>=1", "unknown device requirement 'fp8'"),
    ],
)
def test_a_misspelt_requirement_is_an_error(text, message):
    with pytest.raises(RegionalValueError, match=message):
        parse_requirement(text)


@pytest.mark.parametrize("profile", PROFILES)
def test_an_emulated_gpu_answers_from_its_profile(profile, monkeypatch):
    monkeypatch.setattr("pytest_regional.harness.devices.on_device._host_memory", lambda: 1 << 50)
    facts = facts_of(device_under_test(f"cuda-emulated:{profile}"))
    assert facts.is_gpu
    assert "(emulated)" in facts.name
    assert facts.memory > 16 << 30
    assert FEATURES["fp8"][1](facts) == (profile != "a100")


def test_tensors_of_an_emulated_gpu_are_in_this_machines_memory(monkeypatch):
    monkeypatch.setattr("pytest_regional.harness.devices.on_device._host_memory", lambda: 3 << 30)
    assert facts_of(device_under_test("cuda-emulated")).memory == facts_of(device_under_test("cpu")).memory == 3 << 30


def test_a_gpu_is_asked_itself(monkeypatch):
    class Properties:
        name, major, minor, total_memory = "NVIDIA L4", 8, 9, 24 << 30

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)
    assert facts_of(device_under_test("cuda")) == DeviceFacts("NVIDIA L4", "cuda", (8, 9), 24 << 30, devices=3)


def test_requirements_are_checked_without_torch():
    check = "import sys; from pytest_regional.harness.devices.device import parse_requirement as p; p('fp8')"
    subprocess.run([sys.executable, "-c", f"{check}; assert 'torch' not in sys.modules"], check=True)


def test_only_the_cpu_lacks_the_backward_of_flex_attention():
    assert "front end" in device_limit(device_under_test("cpu"), "flex_attention_backward").reason
    assert device_limit(device_under_test("cuda-emulated"), "flex_attention_backward")
    assert device_limit(device_under_test("cpu"), "rng")


def test_a_harness_is_asked_inside_a_test():
    with regional("aot_eager", "cpu", expects_regions=False) as harness:
        harness.require_device("bf16")
        assert harness.require_device().name == "the CPU"
        with pytest.raises(unittest.SkipTest, match="needs cuda, which the CPU has not"):
            harness.require_device("bf16", "cuda")


@pytest.mark.parametrize(
    ("needs", "reason"),
    [
        ({"device_requires": ("cuda",)}, "needs cuda"),
        ({"requires": ("flex_attention_backward",)}, "device 'cpu' has no"),
    ],
)
def test_a_harness_is_skipped_where_its_device_does_not_do(needs, reason):
    with pytest.raises(unittest.SkipTest, match=reason), regional("aot_eager", "cpu", **needs):
        pytest.fail("it ran")
