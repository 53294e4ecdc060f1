"""Seeding torch's generators without the price of those of devices that are not there."""

from __future__ import annotations

import torch


def seed_torch(seed: int) -> None:
    """Seed the default generators of the CPU and of all devices, as ``torch.manual_seed`` does.

    Where no accelerator is available, ``torch.manual_seed`` (2.11 to 2.15) notes for CUDA, XPU and MTIA that they are
    to be seeded once they are used, each note with the stack as text: a millisecond, for devices that never come.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
