"""What a test leaves on a GPU, with a GPU that is made up: the calls are what is looked at."""

from __future__ import annotations

import pytest
import torch

from pytest_regional._base.errors import RegionalRuntimeError
from pytest_regional.harness import isolation
from pytest_regional.harness.isolation import gpu_isolated, lost


class Gpu:
    """Two GPUs as ``torch.cuda`` shows them."""

    def __init__(self) -> None:
        self.device, self.streams, self.generators = 0, {0: "stream 0", 1: "stream 1"}, ["a", "b"]
        self.initialized, self.error, self.calls = True, None, []

    def synchronize(self) -> None:
        self.calls.append("synchronize")
        if self.error:
            raise RuntimeError(self.error)

    def set_stream(self, stream: str) -> None:
        self.device = int(stream[-1])
        self.streams[self.device] = stream

    def set_rng_state_all(self, states) -> None:
        self.generators = list(states)


@pytest.fixture
def gpu(monkeypatch):
    gpu = Gpu()
    functions = {
        "is_initialized": lambda: gpu.initialized,
        "device_count": lambda: 2,
        "current_device": lambda: gpu.device,
        "set_device": lambda device: setattr(gpu, "device", device),
        "current_stream": lambda index: gpu.streams[index],
        "set_stream": gpu.set_stream,
        "get_rng_state_all": lambda: list(gpu.generators),
        "set_rng_state_all": gpu.set_rng_state_all,
        "synchronize": gpu.synchronize,
        "empty_cache": lambda: gpu.calls.append("empty_cache"),
    }
    for name, function in functions.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(isolation, "_lost", "")
    return gpu


def test_changes_of_a_test_are_restored(gpu):
    with gpu_isolated():
        gpu.device, gpu.streams[0], gpu.generators = 1, "side stream 0", ["x", "y"]
    assert (gpu.device, gpu.streams, gpu.generators) == (0, {0: "stream 0", 1: "stream 1"}, ["a", "b"])
    assert gpu.calls == ["synchronize", "empty_cache"]


def test_cudnn_computes_in_float32(gpu, monkeypatch):
    """By default it chooses TF32 for some layouts, which a parity within float32's errors cannot allow."""
    assert torch.backends.cudnn.allow_tf32
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with gpu_isolated():
        assert not torch.backends.cudnn.allow_tf32
        assert torch.backends.cudnn.conv.fp32_precision != "tf32"
    assert torch.backends.cudnn.allow_tf32


def test_a_precision_that_was_chosen_for_convolutions_alone_stays(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    before = torch.backends.cudnn.conv.fp32_precision
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    try:
        with gpu_isolated():
            assert torch.backends.cudnn.rnn.fp32_precision == "tf32"
        assert torch.backends.cudnn.conv.fp32_precision != "tf32"
    finally:
        torch.backends.cudnn.conv.fp32_precision = before


def test_an_unused_gpu_is_left_alone(gpu):
    gpu.initialized = False
    with gpu_isolated():
        pass
    assert gpu.calls == []


def test_a_gpu_first_used_inside_is_waited_for(gpu):
    gpu.initialized = False
    with gpu_isolated():
        gpu.initialized, gpu.device = True, 1
    assert gpu.calls == ["synchronize", "empty_cache"]


def test_a_lost_context_is_named_once_and_for_all(gpu, monkeypatch):
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "test_it.py::test_bad (teardown)")
    gpu.error = "CUDA error: device-side assert triggered\nCompile with ..."
    with pytest.raises(
        RegionalRuntimeError, match=r"test_bad left the GPU with an error: CUDA error: device-side assert"
    ):
        with gpu_isolated():
            pass
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "test_it.py::test_next (teardown)")
    with pytest.raises(RegionalRuntimeError, match="test_bad left"):
        with gpu_isolated():
            pass
    assert lost() == "test_it.py::test_bad left the GPU with an error: CUDA error: device-side assert triggered"


def test_an_error_of_the_test_stays_visible(gpu):
    gpu.error = "CUDA error: illegal memory access"
    with pytest.raises(RegionalRuntimeError) as failure:
        with gpu_isolated():
            raise ValueError("the test's own")
    assert "the test's own" in str(failure.value.__cause__.__context__)
