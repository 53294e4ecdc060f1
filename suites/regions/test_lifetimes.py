"""Values are freed as early as their last use allows: nothing is kept alive by the way regions are called."""

from __future__ import annotations

import weakref

import pytest
import torch

from .annotations import in_region

pytestmark = pytest.mark.regional_compile(requires=("backward", "regions"))

ALIVE: list[str] = []
WATCHED: dict[str, weakref.ref[torch.Tensor]] = {}


@torch.library.custom_op("pytest_regional_suites::watch", mutates_args=())
def watch(x: torch.Tensor, name: str) -> torch.Tensor:
    """Return a copy of ``x`` and remember it, weakly, under ``name``."""
    copy = x.clone()
    WATCHED[name] = weakref.ref(copy)
    return copy


@torch.library.custom_op("pytest_regional_suites::look", mutates_args=())
def look(x: torch.Tensor) -> torch.Tensor:
    """Note which watched values are alive."""
    ALIVE.append(" ".join(sorted(name for name, tensor in WATCHED.items() if tensor() is not None)))
    return x.clone()


@watch.register_fake
def _(x: torch.Tensor, name: str) -> torch.Tensor:
    return torch.empty_like(x)


@look.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


watch.register_autograd(lambda context, gradient: (gradient, None))
look.register_autograd(lambda context, gradient: look(gradient))


@pytest.fixture(autouse=True)
def _forget():
    ALIVE.clear()
    WATCHED.clear()


@pytest.mark.quick
def test_an_input_of_a_region_is_freed_after_its_last_use(regional):
    def program(x, w):
        first = watch(x, "first")
        with in_region("r"):
            h = first @ w
        return look(h)

    with torch.no_grad():
        regional.run(program, regional.randn(4, 8), regional.randn(8, 8))
    assert ALIVE == [""]


def test_a_value_that_is_used_again_stays(regional):
    """The twin: the look does see what is alive."""

    def program(x, w):
        first = watch(x, "first")
        with in_region("r"):
            h = first @ w
        return look(h) + first

    with torch.no_grad():
        regional.run(program, regional.randn(4, 8), regional.randn(8, 8))
    assert ALIVE == ["first"]


def test_saved_activations_are_freed_while_the_backward_runs(regional):
    def program(x, w):
        h = look(x @ w)
        h = watch(h, "saved")
        with in_region("r"):
            return h @ w

    record = regional.run(program, regional.randn(4, 8, requires_grad=True), regional.randn(8, 8, requires_grad=True))
    del record
    # In the forward there is nothing to see yet; the backward's look comes after the region that needs what was saved.
    assert ALIVE == ["", ""]
