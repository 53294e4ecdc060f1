"""Seeded inputs on the device under test."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch

from pytest_regional.harness.vacuity import check_not_vacuous


class InputFactories:
    """Torch's own factories with the device filled in; for others give ``device=regional.device``.

    Values come from the generators that isolation seeds, so that a test gets the same inputs in any order, on any
    worker, alone or among others. Every keyword of the torch factory is accepted.
    """

    device: torch.device

    def randn(self, *size: Any, **options: Any) -> torch.Tensor:
        """As ``torch.randn`` on the device under test."""
        return self._make("randn", *size, **options)

    def rand(self, *size: Any, **options: Any) -> torch.Tensor:
        """As ``torch.rand`` on the device under test."""
        return self._make("rand", *size, **options)

    def randint(self, *arguments: Any, **options: Any) -> torch.Tensor:
        """As ``torch.randint`` on the device under test."""
        return self._make("randint", *arguments, **options)

    def tensor(self, data: Any, **options: Any) -> torch.Tensor:
        """As ``torch.tensor`` on the device under test."""
        return self._make("tensor", data, **options)

    def _make(self, name: str, *arguments: Any, **options: Any) -> torch.Tensor:
        result: torch.Tensor = getattr(torch, name)(*arguments, **{"device": self.device, **options})
        return result


_FACTORIES = ("arange", "empty", "full", "linspace", "ones", "randperm", "zeros")


def old_name(regional: Any, name: str) -> Any:
    """Return what an attribute was that earlier versions had.

    Raises:
        AttributeError: there never was one.

    Warns:
        DeprecationWarning: what to write instead.
    """
    instead: str
    value: Any
    if name in _FACTORIES:
        instead = f"torch.{name}(..., device=regional.device)"
        value = functools.partial(getattr(torch, name), device=regional.device)
    elif name == "observe":
        instead, value = "regional.run(..., as_is=True)", functools.partial(regional.run, as_is=True)
    elif name == "variants":
        instead, value = "regional.spec.variants", regional.spec.variants
    elif name == "compiles_graphs":
        instead, value = "regional.spec.graph_pass", regional.spec.graph_pass is not None
    elif name == "check_not_vacuous":
        instead, value = (
            "pytest_regional.testing.regional, which checks at its end",
            functools.partial(check_not_vacuous, regional),
        )
    else:
        raise AttributeError(f"{type(regional).__name__!r} object has no attribute {name!r}")
    warnings.warn(f"regional.{name} goes with 1.0: use {instead}", DeprecationWarning, stacklevel=3)
    return value


def seed_torch(seed: int) -> None:
    """Seed the default generators of the CPU and of all devices, as ``torch.manual_seed`` does.

    Where no accelerator is available, ``torch.manual_seed`` (2.11 to 2.15) notes for CUDA, XPU and MTIA that they are
    to be seeded once they are used, each note with the stack as text: a millisecond, for devices that never come.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
