"""The same program is planned and compiled in the same way each time."""

from __future__ import annotations

import pytest
import torch

from .annotations import in_region

pytestmark = pytest.mark.regional_compile(requires=("region_ids", "custom_ops"))

#: What :func:`told` saw since the list was last cleared.
TOLD: list[str] = []


@torch.library.custom_op("pytest_regional_suites::told", mutates_args=())
def told(x: torch.Tensor, name: str) -> torch.Tensor:
    """Note that it ran, which no compiler knows: it may run whenever its input is there."""
    TOLD.append(name)
    return x.clone()


@told.register_fake
def _(x, name):
    return torch.empty_like(x)


def independent(x):
    with in_region("one"):
        one = told(x * 2, "one")
    two = told(x + 1, "two")
    with in_region("three"):
        three = told(x, "three")
    with in_region("one"):
        four = told(x, "four")
    return one + two + three + four


@pytest.mark.quick
def test_independent_regions_run_in_the_same_order_each_time(regional):
    x, orders = regional.randn(4, 8), set()
    for _ in range(8):
        regional.restart()
        TOLD.clear()
        with torch.compiler.config.patch(force_disable_caches=True):
            regional.run(independent, x)
        orders.add(tuple(TOLD))

    assert len(orders) == 1
