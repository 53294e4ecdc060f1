"""Dynamo's stopwatch on guards, which costs a seventh of a run, stands still; guards guard all the same."""

from __future__ import annotations

import pytest
import torch._dynamo.guards

from pytest_regional.testing import regional

from .programs import product


@pytest.fixture
def timed(monkeypatch):
    """What the stopwatch answered."""
    answers = []
    stopwatch = torch._dynamo.guards.profile_guard_manager

    def noted(*arguments):
        answers.append(stopwatch(*arguments))
        return answers[-1]

    monkeypatch.setattr(torch._dynamo.guards, "profile_guard_manager", noted)
    return answers


def test_outside_it_runs(timed):
    """That the test below can fail."""
    torch._dynamo.reset()
    torch.compile(product, backend="eager")(torch.ones(2, 2), torch.ones(2, 2))
    assert len(timed) == 1


def test_inside_it_does_not_and_guards_hold(timed):
    with regional("aot_eager", expects_regions=False) as r:
        compiled = r.compile(product)
        for size in (2, 2, 3):
            compiled(r.randn(size, size), r.randn(size, size))
        assert (r.counters["graphs"], r.counters["recompiles"]) == (2, 1)
    assert not timed
    assert torch._dynamo.guards.profile_guard_manager.__name__ == "noted"
