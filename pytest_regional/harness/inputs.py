"""Seeded inputs on the device under test."""

from __future__ import annotations

from typing import Any

import torch


class InputFactories:
    """``randn`` and its kin: torch's own factories with the device filled in.

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

    def randperm(self, n: int, **options: Any) -> torch.Tensor:
        """As ``torch.randperm`` on the device under test."""
        return self._make("randperm", n, **options)

    def zeros(self, *size: Any, **options: Any) -> torch.Tensor:
        """As ``torch.zeros`` on the device under test."""
        return self._make("zeros", *size, **options)

    def ones(self, *size: Any, **options: Any) -> torch.Tensor:
        """As ``torch.ones`` on the device under test."""
        return self._make("ones", *size, **options)

    def full(self, *arguments: Any, **options: Any) -> torch.Tensor:
        """As ``torch.full`` on the device under test."""
        return self._make("full", *arguments, **options)

    def empty(self, *size: Any, **options: Any) -> torch.Tensor:
        """As ``torch.empty`` on the device under test."""
        return self._make("empty", *size, **options)

    def arange(self, *arguments: Any, **options: Any) -> torch.Tensor:
        """As ``torch.arange`` on the device under test."""
        return self._make("arange", *arguments, **options)

    def linspace(self, *arguments: Any, **options: Any) -> torch.Tensor:
        """As ``torch.linspace`` on the device under test."""
        return self._make("linspace", *arguments, **options)

    def tensor(self, data: Any, **options: Any) -> torch.Tensor:
        """As ``torch.tensor`` on the device under test."""
        return self._make("tensor", data, **options)

    def _make(self, name: str, *arguments: Any, **options: Any) -> torch.Tensor:
        import torch

        result: torch.Tensor = getattr(torch, name)(*arguments, **{"device": self.device, **options})
        return result


def seed_torch(seed: int) -> None:
    """Seed the default generators of the CPU and of all devices, as ``torch.manual_seed`` does.

    Where no accelerator is available, ``torch.manual_seed`` (2.11 to 2.15) notes for CUDA, XPU and MTIA that they are
    to be seeded once they are used, each note with the stack as text: a millisecond, for devices that never come.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
