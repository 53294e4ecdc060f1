"""Training whose numbers hang on rounding: mixed precision, and values on either side of a kink."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from pytest_regional.harness.training import NoFp64ReferenceWarning

from .programs import Small, found, judged

CHANNELS, IMAGE, STEPS = 8, 8, 2


class Residual(nn.Module):
    """Convolutions, norms and ReLU in bfloat16; ``wide`` keeps in float32 what is between two roundings."""

    wide = wrong_row = False

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(CHANNELS) for _ in range(3))
        for norm in self.norms:
            nn.init.normal_(norm.weight, 1.0, 0.25)
            nn.init.normal_(norm.bias, 0.0, 0.25)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(torch.bfloat16)
        for n, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            weight = convolution.weight
            if self.wrong_row and n == 1:
                weight = torch.cat([weight[:1].detach(), weight[1:]])
            h = nn.functional.conv2d(x, weight.to(torch.bfloat16), padding=1)
            x = torch.relu(norm(h.float() if self.wide else h) + x).to(torch.bfloat16)
        return x


def trained(seed, steps=STEPS, **changed):
    """Train with a copy whose attributes are ``changed`` in place of a compiled one."""
    torch.manual_seed(seed)
    shape = 2, CHANNELS, IMAGE, IMAGE

    def compiled(copied):
        vars(copied).update(changed)
        return copied

    return judged(
        compiled,
        model=Residual(),
        batches=[(torch.randn(shape), torch.randn(shape)) for _ in range(steps)],
        loss=lambda output, target: nn.functional.mse_loss(output.float(), target),
    )


@pytest.mark.slow("trains in eight ways", fast="test_gradients_under_autocast_are_anchored")
def test_a_kink_on_whose_sides_rounding_decides_is_no_difference():
    measured = 0
    for seed in range(8):
        report = trained(seed, wide=True)
        assert report.ok, f"seed {seed}: {report.describe()}"
        measured += "with eager's own rounding, measured in" in report.summary()
    assert measured >= 3, "eager's one error was enough, so the test shows nothing"


def test_a_row_without_a_gradient_is_a_difference_there_too():
    """With this seed fewer elements show it than with others: 4 of 576."""
    report = trained(2, steps=1, wide=True, wrong_row=True)
    assert (1, "gradient of convolutions.1.weight") in found(report)


class Autocast(Small):
    """Parameters and gradients in float32, computed in bfloat16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x).float()


class Chooses(Small):
    """Values that choose otherwise in every run that is rounded otherwise, and in float64."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = super().forward(x)
        return output * torch.sin(output.detach() * 1e9)


def test_gradients_under_autocast_are_anchored():
    """They are as far from float64 as bfloat16 is, though their dtype is float32."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoFp64ReferenceWarning)
        report = judged(lambda copied: copied, model=Autocast(), steps=2)
    assert report.ok
    assert report.anchored


def test_gradients_that_rounding_makes_anything_of_are_not():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = judged(lambda copied: copied, model=Chooses(), steps=2)
    assert not report.anchored
    assert [warning.category for warning in caught] == [NoFp64ReferenceWarning]


def test_four_fifths_of_a_gradient_under_autocast_is_a_difference():
    def compiled(copied):
        copied.up.weight.register_hook(lambda gradient: gradient * 0.8)
        return copied

    report = judged(compiled, model=Autocast(), steps=1)
    assert (1, "gradient of up.weight") in found(report)
    assert report.anchored
