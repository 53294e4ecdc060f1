"""Caches: what a key does not hold, and what is never kept."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import region

from .checks import same
from .known_bugs import BugClass, BugNoticedError, assert_as_listed

pytestmark = pytest.mark.regional_compile
bugs = BugClass("cache", needs=("outer_cache",))


@bugs(layer="inductor", torch="<2.12", notices="cache", but={"reference": None, "torch": None})
def stale_hit_autocast(regional):
    """What was compiled under autocast of one dtype is given back under another."""

    def program(x):
        h = x @ x
        with region("r"):
            return h @ h

    x = regional.randn(4, 4)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast(regional.device.type, dtype=dtype):
            compiled = regional.compile(program)(x)
            if compiled.dtype != dtype:
                raise BugNoticedError("cache", f"{compiled.dtype} under autocast of {dtype}")
            same("cache", compiled, program(x))
        regional.restart()


@bugs(184405, layer="inductor", torch="<2.13", notices="dtype", in_region=False)
def default_dtype_is_not_in_the_key(regional):
    """``torch.zeros(3)`` that was compiled under another default dtype is given back."""

    def program(x):
        return torch.zeros(3, device=x.device) + x

    x = torch.ones((), dtype=torch.int64, device=regional.device)
    regional.compile(program)(x)
    regional.restart()
    torch.set_default_dtype(torch.float64)
    try:
        found = regional.compile(program)(x).dtype
    finally:
        torch.set_default_dtype(torch.float32)
    if found != torch.float64:
        raise BugNoticedError("dtype", f"{found}, where the default is float64")


@bugs(layer="inductor", notices="cache", in_region=False, requires=("backward",))
def empty_backward_is_not_saved(regional):
    """What has a backward without operators is compiled anew by every process."""
    for _ in range(2):
        regional.compile(lambda x: x + 1)(torch.ones(3, requires_grad=True, device=regional.device)).sum().backward()
        regional.restart()
    if not regional.counters.cache_hits:
        raise BugNoticedError("cache", "the second process had no hit")


@pytest.mark.quick
@pytest.mark.parametrize("bug", bugs.cases())
def test_known_bug(regional, bug, record_property):
    assert_as_listed(bug, regional, record_property)
