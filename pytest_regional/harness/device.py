"""Devices under test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_regional._text import unknown_name

if TYPE_CHECKING:
    import torch

DEVICES = ("auto", "cpu", "cuda")


class DeviceError(ValueError):
    """A device that does not exist, or that cannot be used here; the message says which and why."""


def check_device_name(name: str) -> str:
    """Return ``name`` when it is one of :data:`DEVICES`, else raise :class:`DeviceError`."""
    if name not in DEVICES:
        raise DeviceError(unknown_name("device", name, DEVICES))
    return name


def usable_device(name: str) -> torch.device:
    """Return the device to test on; ``auto`` is CUDA where it is usable, else the CPU.

    Raises:
        DeviceError: an unknown name, or CUDA where there is none.
    """
    import torch

    check_device_name(name)
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError(f"device 'cuda' was asked for, but torch {torch.__version__} finds no usable GPU here")
    use_cuda = name == "cuda" or (name == "auto" and torch.cuda.is_available())
    return torch.device("cuda" if use_cuda else "cpu")
