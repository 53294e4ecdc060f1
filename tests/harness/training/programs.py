"""A small model with everything that a training step touches, and batches for it."""

from __future__ import annotations

import contextlib

import torch
from torch import nn

from pytest_regional import TrainingParityError
from pytest_regional.harness.training import assert_training_parity
from pytest_regional.testing import regional

SIZE, HIDDEN, CLASSES, ROWS = 12, 24, 10, 16


class Small(nn.Module):
    """Two linear layers around batch norm (buffers) and dropout (random numbers)."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(SIZE, HIDDEN), nn.Linear(HIDDEN, CLASSES)
        self.norm, self.dropout = nn.BatchNorm1d(HIDDEN), nn.Dropout(0.25)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.dropout(nn.functional.silu(self.norm(self.up(x)))))


def batches(harness, steps=5, dtype=torch.float32):
    return [(harness.randn(ROWS, SIZE, dtype=dtype), harness.randint(0, CLASSES, (ROWS,))) for _ in range(steps)]


@contextlib.contextmanager
def eager():
    """A harness that compiles nothing by itself: what is compiled is for the test to say."""
    with regional("aot_eager", expects_regions=False) as harness:
        yield harness


def judged(compiled, *, model=None, **options):
    """Train ``model`` with what ``compiled`` makes of its copy; return the report, of failures too."""
    options = {"loss": nn.functional.cross_entropy, **options}
    with eager() as harness:
        model = model or Small()
        steps = options.pop("batches", None) or batches(harness, options.pop("steps", 5))
        try:
            return assert_training_parity(harness, model, steps, compiled=compiled, **options)
        except TrainingParityError as error:
            return error.report


def found(report):
    """Return what differed, as (step, tensor)."""
    return [(mismatch.step, mismatch.where) for mismatch in report.mismatches]
