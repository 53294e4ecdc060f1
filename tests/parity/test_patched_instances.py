"""What a module reaches through callables set on instances, hooks and containers is state like its own."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from pytest_regional.harness.parity.execution import execute, find_state

SIZE = 8


def adapter_in_a_closure(model, adapter):
    original = model[0].forward
    model[0].forward = lambda x: original(x) + adapter(x)


def adapter_in_a_partial(model, adapter):
    original = model[0].forward
    model[0].forward = functools.partial(lambda more, x: original(x) + more(x), adapter)


def adapter_in_a_hook(model, adapter):
    model[0].register_forward_hook(lambda module, inputs, output: output + adapter(inputs[0]))


def adapter_in_a_pre_hook(model, adapter):
    model[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] + adapter(inputs[0]),))


def adapter_in_a_list(model, adapter):
    model[0].adapters = [adapter]
    model[0].register_forward_hook(lambda module, inputs, output: output + module.adapters[0](inputs[0]))


PATCHES = (adapter_in_a_closure, adapter_in_a_partial, adapter_in_a_hook, adapter_in_a_pre_hook, adapter_in_a_list)


@pytest.fixture(params=PATCHES)
def patched(request):
    model, adapter = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh()), nn.Linear(SIZE, SIZE)
    request.param(model, adapter)
    return model, adapter


def test_its_parameters_are_found(patched):
    model, adapter = patched
    state = find_state(model)
    assert state.is_state(adapter.weight)
    labels = [entry.label for entry in state.tensors]
    assert "parameter 0.weight" in labels
    assert len(labels) == len(set(labels)) == 4


def test_its_gradients_are_compared_and_float64_is_a_float64_reference(patched):
    model, adapter = patched
    inputs = (torch.randn(3, SIZE),)
    run = execute(model, inputs)
    assert sum(gradient is not None for gradient in run.grads.values()) == 4
    assert adapter.weight.grad is None
    fp64 = execute(model, inputs, fp64=True)
    assert fp64.fp64_unavailable_reason is None
    assert adapter.weight.dtype == torch.float32


def test_writes_of_a_hook_are_restored():
    model, seen = nn.Linear(SIZE, SIZE), torch.zeros(SIZE)
    model.register_forward_hook(lambda module, inputs, output: seen.add_(output.detach().sum(0)))
    execute(model, (torch.randn(3, SIZE),))
    assert not seen.any()


def test_tensors_that_a_hook_keeps_are_no_reason_to_fail():
    model, kept = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh()), []
    model[0].register_forward_hook(lambda module, inputs, output: kept.append(output))
    for _ in range(2):
        run = execute(model, (torch.randn(3, SIZE),))
        assert run.exception is None
        assert sum(gradient is not None for gradient in run.grads.values()) == 2
