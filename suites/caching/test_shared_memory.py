"""Which inputs and buffers share memory, and where, is part of the key of a program that writes to one of them."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import region

from .lookups import NEEDS, look_up

pytestmark = [
    pytest.mark.regional_compile(requires=NEEDS, dynamic=False),
    pytest.mark.regional_known_failure(
        "inductor",
        reason="its key has neither storages nor offsets: docs/findings/stale_hit_shared_memory.py",
        torch=">=2.11",
    ),
]


def written(x, y):
    x.mul_(2)
    with region("r"):
        return x + y


class Buffers(torch.nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.register_buffer("a", torch.zeros(8))
        self.register_buffer("b", self.a[:] if shared else torch.zeros(8))

    def forward(self, x):
        self.a.add_(1)
        with region("r"):
            return x + self.b


def slices(regional, first, second):
    """Return two rows of one tensor; a copy of the first row for ``None``."""
    data = regional.tensor([[float(row * 8 + column) for column in range(8)] for row in range(3)])
    return data[0:2].clone() if first is None else data[first : first + 2], data[second : second + 2]


@pytest.mark.parametrize("order", [1, -1], ids=["separate first", "overlapping first"])
def test_arguments(regional, order):
    for outcome in ("miss", "hit"):
        for places in [(None, 1), (0, 1), (1, 0)][::order]:
            values = [slices(regional, *places) for _ in range(2)]
            torch.testing.assert_close(look_up(regional, outcome, written, values[0]), [written(*values[1])])


@pytest.mark.parametrize("order", [1, -1], ids=["separate first", "shared first"])
def test_buffers(regional, order):
    x = regional.rand(8)
    for outcome in ("miss", "hit"):
        for shared in [False, True][::order]:
            regional.restart()
            with regional.expect(cache_misses=int(outcome == "miss"), cache_hits=int(outcome == "hit")):
                values = regional.compile(Buffers(shared))(x)
            torch.testing.assert_close(values, Buffers(shared)(x))
