"""Faults planted in a compiled training: each is found, at its step, by the name of what is wrong."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.harness.training.programs import Small, found, judged

LEVELS = ("close", "bitwise")


def as_it_is(model):
    return model


@pytest.mark.parametrize("level", ["close", "dtype", "bitwise"])
def test_without_a_fault_all_is_well(level):
    report = judged(as_it_is, level=level)
    assert report.ok
    # Loss, six gradients, six parameters, three buffers; five times.
    assert report.compared == 5 * 16
    assert report.worst_ratio <= 1


class WrongElement:
    """One element of one gradient is off by a thousandth of the gradient's largest, in step 3."""

    def __init__(self, model):
        self.model, self.step = model, 0
        model.up.weight.register_hook(self.spoil)

    def __call__(self, x):
        self.step += 1
        return self.model(x)

    def spoil(self, gradient):
        gradient = gradient.clone()
        if self.step == 3:
            gradient[7, 5] += gradient.abs().max() / 1000
        return gradient


@pytest.mark.parametrize("level", LEVELS)
def test_a_wrong_element_in_one_gradient(level):
    report = judged(WrongElement, level=level)
    # The optimizer is right: parameters are what it makes of the gradient it got.
    assert found(report) == [(3, "gradient of up.weight")]
    assert report.mismatches[0].evidence.index == (7, 5)
    assert report.mismatches[0].evidence.mismatched == 1
    assert report.first_bad_step == 3


class StaleBuffer(nn.Module):
    """The running mean is not written back from step 2 on."""

    def __init__(self, model):
        super().__init__()
        self.model, self.step = model, 0

    def forward(self, x):
        self.step += 1
        before = self.model.norm.running_mean.clone()
        output = self.model(x)
        if self.step >= 2:
            self.model.norm.running_mean.data.copy_(before)
        return output


@pytest.mark.parametrize("level", LEVELS)
def test_a_buffer_that_is_not_updated(level):
    report = judged(StaleBuffer, level=level)
    assert found(report) == [(step, "buffer norm.running_mean") for step in (2, 3, 4, 5)]


def frozen_weight(model):
    """The compiled program computes with the first weight as it was when it was compiled."""
    weight = model.up.weight.detach().clone()

    def call(x):
        stale = weight + (model.up.weight - model.up.weight.detach())
        h = nn.functional.silu(model.norm(nn.functional.linear(x, stale, model.up.bias)))
        return model.down(model.dropout(h))

    return call


def test_a_parameter_baked_in_at_the_first_step():
    report = judged(frozen_weight)
    assert report.first_bad_step == 2
    assert (2, "loss") in found(report)


class FaultyOptimizer:
    """Spoils the optimizer of the compiled training alone."""

    def compiled(self, model):
        self.model, self.calls = model, 0
        return model

    def __call__(self, parameters):
        optimizer = torch.optim.Adam(parameters, lr=1e-3)
        if hasattr(self, "model") and parameters[0] is next(self.model.parameters()):
            self.step, optimizer.step = optimizer.step, self.spoilt
        return optimizer

    def spoilt(self):
        self.calls += 1
        self.do()

    def do(self):
        raise NotImplementedError


class LosesAStep(FaultyOptimizer):
    def do(self):
        if self.calls != 3:
            self.step()


class ForgetsAParameter(FaultyOptimizer):
    def do(self):
        self.model.norm.weight.grad = None
        self.step()


@pytest.mark.parametrize("level", LEVELS)
def test_a_lost_optimizer_step(level):
    fault = LosesAStep()
    report = judged(fault.compiled, optimizer=fault, level=level)
    names = [name for name, _ in Small().named_parameters()]
    # In step 4 the references start where the compiled run stands: what went wrong once is reported once.
    assert found(report) == [(3, f"parameter {name}") for name in names]


@pytest.mark.parametrize("level", LEVELS)
def test_a_parameter_that_is_not_updated(level):
    fault = ForgetsAParameter()
    report = judged(fault.compiled, optimizer=fault, level=level)
    assert found(report) == [(step, "parameter norm.weight") for step in (1, 2, 3, 4, 5)]


class OtherMask(torch.autograd.Function):
    """Dropout whose backward draws a mask of its own."""

    @staticmethod
    def forward(context, x):
        return x * (torch.rand_like(x) > 0.25) / 0.75

    @staticmethod
    def backward(context, gradient):
        return gradient * (torch.rand_like(gradient) > 0.25) / 0.75


class SameMask(OtherMask):
    """Dropout as it should be."""

    @staticmethod
    def forward(context, x):
        context.mask = (torch.rand_like(x) > 0.25) / 0.75
        return x * context.mask

    @staticmethod
    def backward(context, gradient):
        return gradient * context.mask


class Masked(nn.Module):
    """Draws its mask with a function of its own; in float64 ``rand_like`` draws other numbers."""

    function = SameMask

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(12, 24), nn.Linear(24, 10)

    def forward(self, x):
        return self.down(self.function.apply(self.up(x)))


class WronglyMasked(Masked):
    function = OtherMask


def other_mask(model):
    model.__class__ = WronglyMasked
    return model


def test_a_dropout_mask_that_differs_in_the_backward():
    report = judged(other_mask, model=Masked())
    assert (1, "loss") not in found(report)
    assert {where for _, where in found(report)} == {"gradient of up.weight", "gradient of up.bias"}


def test_a_program_that_draws_other_numbers_in_float64_is_judged_without():
    report = judged(as_it_is, model=Masked())
    assert report.ok
    assert not report.anchored
    assert "computes something else" in str(report)


class OwnDropout(nn.Module):
    """Dropout with numbers from another seed."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        torch.manual_seed(1)
        return self.model(x)


def test_other_random_numbers():
    assert (1, "loss") in found(judged(OwnDropout))


def no_gradient(model):
    """One parameter is detached."""

    def call(x):
        h = nn.functional.silu(model.norm(nn.functional.linear(x, model.up.weight, model.up.bias.detach())))
        return model.down(model.dropout(h))

    return call


def test_a_missing_gradient():
    report = judged(no_gradient)
    assert found(report)[0] == (1, "gradient of up.bias")
    assert report.mismatches[0].kind == "missing"


def last_bit(model):
    def call(x):
        output = model(x)
        values = output.detach()
        return output + (torch.nextafter(values, torch.tensor(torch.inf)) - values)

    return call


def test_a_last_bit_is_close_and_not_bitwise():
    assert judged(last_bit).ok
    assert judged(last_bit, level="bitwise").first_bad_step == 1


def test_nan():
    def compiled(model):
        return lambda x: model(x) * torch.tensor([1.0] * 9 + [torch.nan])

    report = judged(compiled)
    assert report.mismatches[0].kind == "nan"
    assert report.first_bad_step == 1


class FailsLater(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model, self.step = model, 0

    def forward(self, x):
        self.step += 1
        if self.step == 3:
            raise RuntimeError("no such kernel")
        return self.model(x)


def test_an_exception_ends_the_training():
    report = judged(FailsLater)
    assert report.failure.step == 3
    assert len(report.steps) == 2
    assert "step 3: the compiled step: exception: RuntimeError: no such kernel" in str(report)


def test_a_module_with_parameters_of_its_own():
    report = judged(copy.deepcopy)
    assert report.ok
    spoilt = judged(lambda model: WrongElement(copy.deepcopy(model)))
    assert not spoilt.ok
