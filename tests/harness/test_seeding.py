"""``seed_torch`` seeds what ``torch.manual_seed`` seeds, and asks no device that is not there."""

from __future__ import annotations

import traceback

import pytest
import torch

from pytest_regional.harness.isolation import seed_torch

SEEDS = (0, 7, 2**63 - 1, -1)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_numbers_are_those_of_manual_seed(seed):
    torch.manual_seed(seed)
    expected = torch.rand(5), torch.initial_seed()
    torch.rand(1)
    seed_torch(seed)
    got = torch.rand(5), torch.initial_seed()
    assert torch.equal(got[0], expected[0])
    assert got[1] == expected[1]


def test_no_stack_is_written_down_for_devices_that_are_not_there(monkeypatch):
    if torch.accelerator.is_available():
        pytest.skip("an accelerator is available")
    asked = []
    monkeypatch.setattr(traceback, "format_stack", lambda *args, **options: asked.append(1) or [])
    seed_torch(3)
    assert not asked
    torch.manual_seed(3)
    assert asked, "torch.manual_seed writes none either: seed_torch can go"


def test_devices_that_are_there_are_seeded(monkeypatch):
    seeded = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch, "manual_seed", seeded.append)
    seed_torch(3)
    assert seeded == [3]
