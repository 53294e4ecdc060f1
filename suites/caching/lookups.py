"""One lookup after another, each as a new process would make it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._functorch.config

from pytest_regional import Regional

NEEDS = ("outer_cache",)


def run(compiled: Callable[..., Any], inputs: tuple[torch.Tensor, ...], training: bool = False) -> list[torch.Tensor]:
    """Return the outputs, and in training the gradients of all leaves behind them."""
    if not training:
        with torch.no_grad():
            return _listed(compiled(*inputs))
    outputs = _listed(compiled(*inputs))
    parameters = compiled.parameters() if isinstance(compiled, torch.nn.Module) else ()
    leaves = [leaf for leaf in [*inputs, *parameters] if leaf.requires_grad]
    # No sum: its gradient is expanded, which takes a kernel.
    cotangents = [torch.ones_like(output).tril() for output in outputs]
    return [*outputs, *torch.autograd.grad(outputs, leaves, cotangents)]


def look_up(
    regional: Any,
    outcome: str,
    program: Any,
    inputs: tuple[torch.Tensor, ...],
    *,
    training: bool = False,
    lookups: int = 1,
    **options: Any,
) -> list[torch.Tensor]:
    """Compile ``program`` as a new process would and run it; return what :func:`run` does.

    Expected is that each of its ``lookups`` ends as ``outcome`` says: a ``hit``, for which nothing may be compiled, a
    ``miss``, whose result is saved, or a ``bypass``.
    """
    regional.restart()
    names = {"hit": "cache_hits", "miss": "cache_misses", "bypass": "cache_bypasses"}
    expected = dict.fromkeys(names.values(), 0) | {names[outcome]: lookups, "fallbacks": 0}
    expected["cache_saves"] = lookups if outcome == "miss" else 0
    if outcome == "hit":
        expected |= {"region_compiles": 0, "graphs": 0}
    with regional.expect(**expected):
        return run(regional.compile(program, **options), inputs, training)


def check(
    regional: Any, outcome: str, program: Any, inputs: tuple[torch.Tensor, ...], **options: Any
) -> list[torch.Tensor]:
    """As :func:`look_up`; the values are those of eager as well."""
    training = options.get("training", False)
    values = look_up(regional, outcome, program, inputs, **options)
    torch.testing.assert_close(values, run(program, inputs, training))
    return values


def cold_and_warm(regional: Any, program: Any, inputs: tuple[torch.Tensor, ...], **options: Any) -> None:
    """Assert a miss and then a hit, both right, and the hit bitwise equal to the miss that made it."""
    cold = check(regional, "miss", program, inputs, **options)
    warm = check(regional, "hit", program, inputs, **options)
    assert all(map(torch.equal, cold, warm))


@contextlib.contextmanager
def whole_results_cached(regional: Regional) -> Iterator[None]:
    """Make AOTAutograd's cache store whole results for backends that have no cache of their own; skip where neither."""
    kept = regional.supports("outer_cache") or regional.supports("pytorch_outer_cache")
    if not kept:
        pytest.skip(f"needs outer_cache or pytorch_outer_cache: {kept.reason}")
    with torch._functorch.config.patch(force_autograd_cache=True, bundled_autograd_cache=True):
        yield


def _listed(outputs: Any) -> list[torch.Tensor]:
    return [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
