"""What the checks of known bugs have in common: a program as a region, and comparisons that parity does not make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_regional import region, torch_matches

from .known_bugs import BugNoticedError


def parity(regional: Any, program: Callable[..., Any], *inputs: Any, **options: Any) -> None:
    """Assert parity of ``program`` as one region; ``options`` are those of ``assert_parity``."""
    regional.assert_parity(region(program), *inputs, **options)


def same(by: str, found: Any, expected: Any) -> None:
    """Raise :class:`BugNoticedError` by ``by`` where ``found`` is not close to ``expected``."""
    try:
        torch.testing.assert_close(found, expected)
    except AssertionError as error:
        raise BugNoticedError(by, str(error)) from None


def same_later(regional: Any, program: Callable[..., Any], *calls: tuple[Any, ...]) -> None:
    """Compare ``program`` with eager on each of ``calls``, the arguments of one call."""
    compiled = regional.compile(program)
    for arguments in calls:
        same("second call", compiled(*arguments), program(*arguments))


def refused(regional: Any, program: Callable[..., Any], *inputs: Any) -> None:
    """Check that ``program``, which eager refuses, is refused once compiled, as one region.

    Inductor's own errors, such as a failed assertion in a lowering, refuse nothing: they end every compile.
    """
    if not _refuses(program, inputs):
        raise ValueError("eager does not refuse the program")
    if not _refuses(regional.compile(region(program)), inputs):
        raise BugNoticedError("refusal", "eager refuses the program, and compiled it runs")


def skip_without_nested_backward(regional: Any, calls: int = 1) -> None:
    """Skip where a nested region that is called ``calls`` times has no backward: old torch, Dynamo's ``eager``."""
    since = "2.13" if calls == 1 else "2.15"
    if regional.backend == "eager" and torch_matches(f"<{since}"):
        times = "" if calls == 1 else " that is called twice"
        pytest.skip(f"before torch {since} a nested region{times} has no backward with the backend 'eager'")


def _refuses(function: Callable[..., Any], inputs: tuple[Any, ...]) -> bool:
    try:
        function(*inputs)
    except (RuntimeError, IndexError, TypeError, ValueError, AssertionError) as error:
        if type(error).__name__ == "InductorError":
            raise
        return True
    return False


def gradient(function: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the sum of ``function(x)``."""
    leaf = x.detach().clone().requires_grad_()
    function(leaf).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def next_draw(function: Callable[[], Any]) -> torch.Tensor:
    """Return what is drawn next after ``function`` ran from a fixed seed."""
    torch.manual_seed(0)
    function()
    return torch.rand(())
