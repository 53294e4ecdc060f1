"""The passes together, on what the pipeline captures: it trains as eager does, bit for bit."""

from __future__ import annotations

import copy

import pytest
import torch

from pytest_regional.reference import pipeline
from pytest_regional.reference.passes import (
    Canonicalization,
    DeadCodeElimination,
)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x):
        y = self.norm(self.first(x)).view(-1).view(-1, 8).t().t()
        (y @ y.t()).sin()  # Nobody uses it.
        y = torch.nn.functional.dropout(y.detach() + y, 0.5)
        return self.second(y).tanh()


def step(model, call, x):
    """Return loss, gradients, buffers and the next draw after one step."""
    torch.manual_seed(3)
    loss = call(x).square().sum()
    loss.backward()
    state = [p.grad for p in model.parameters()] + list(model.buffers())
    return [loss.detach(), *state, torch.rand(2)]


@pytest.mark.parametrize("partitioner", ["default", "min_cut"])
def test_cleaning_changes_no_bit_of_a_training_step(partitioner):
    model, x = Model(), torch.randn(6, 8)
    eager = copy.deepcopy(model)
    passes = [Canonicalization(), DeadCodeElimination()]
    compiled = pipeline.compile(model, (x,), passes=passes, partitioner=partitioner)
    for _ in range(2):
        for ours, theirs in zip(step(model, compiled, x), step(eager, eager, x), strict=True):
            assert torch.equal(ours, theirs)
    forward = compiled.report.on("forward")
    assert forward.of("canonicalization")[0].changed
    assert compiled.report.on("backward").of("dead_code_elimination")
