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
        return torch.randn(*size, **{"device": self.device, **options})

    def rand(self, *size: Any, **options: Any) -> torch.Tensor:
        """As ``torch.rand`` on the device under test."""
        return torch.rand(*size, **{"device": self.device, **options})

    def randint(self, *arguments: Any, **options: Any) -> torch.Tensor:
        """As ``torch.randint`` on the device under test."""
        return torch.randint(*arguments, **{"device": self.device, **options})

    def tensor(self, data: Any, **options: Any) -> torch.Tensor:
        """As ``torch.tensor`` on the device under test."""
        return torch.tensor(data, **{"device": self.device, **options})


def old_name(regional: Any, name: str) -> Any:
    """Return what an attribute was that earlier versions had, with a warning that says what to write instead."""
    value: Any
    if name in ("arange", "empty", "full", "linspace", "ones", "randperm", "zeros"):
        instead = f"torch.{name}(..., device=regional.device)"
        value = functools.partial(getattr(torch, name), device=regional.device)
    elif name == "observe":
        instead, value = "regional.run(..., as_is=True)", functools.partial(regional.run, as_is=True)
    elif name == "variants":
        instead, value = "regional.spec.variants", regional.spec.variants
    elif name == "compiles_graphs":
        instead, value = "regional.spec.graph_pass", regional.spec.graph_pass is not None
    elif name == "device_facts":
        instead, value = "regional.require_device()", regional.require_device()
    elif name == "reset":
        instead, value = "regional.restart()", regional._reset
    elif name == "graphs":
        instead, value = "regional.observer.graph_records()", regional.observer.graph_records()
    elif name == "check_not_vacuous":
        instead = "pytest_regional.testing.regional, which checks at its end"
        value = functools.partial(check_not_vacuous, regional)
    else:
        raise AttributeError(f"{type(regional).__name__!r} object has no attribute {name!r}")
    warnings.warn(f"regional.{name} goes with 1.0: use {instead}", DeprecationWarning, stacklevel=3)
    return value
