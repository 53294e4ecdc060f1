"""Devices under test: names, checked without torch, and what stands behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_regional._text import unknown_name
from pytest_regional.emulation.device import DEFAULT_PROFILE, PROFILES

if TYPE_CHECKING:
    import torch

EMULATED = "cuda-emulated"
DEVICES = ("auto", "cpu", "cuda", EMULATED, *(f"{EMULATED}:{profile}" for profile in PROFILES))

#: What people call a device elsewhere. The spelling of "gpu" is next to that of "cpu", its meaning is not.
ALIASES = {
    "gpu": "cuda",
    "cuda:0": "cuda",
    "nvidia": "cuda",
    "host": "cpu",
    "emulated": EMULATED,
    "gpu-emulated": EMULATED,
    "emulated-cuda": EMULATED,
    **{profile: f"{EMULATED}:{profile}" for profile in PROFILES},
}


class DeviceError(ValueError):
    """A device that does not exist, or that cannot be used here; the message says which and why."""


@dataclass(frozen=True)
class DeviceUnderTest:
    """What a device name stands for on this machine.

    Attributes:
        name: as it was asked for, ``auto`` settled.
        kind: ``"cpu"``, ``"cuda"`` or ``"cuda-emulated"``.
        profile: the GPU that is emulated, else ``None``.
    """

    name: str
    kind: str
    profile: str | None = None

    @property
    def is_emulated(self) -> bool:
        """Whether GPU code is generated for a described GPU and interpreted on CPU tensors."""
        return self.kind == EMULATED

    @property
    def torch_device(self) -> torch.device:
        """Where tensors of a test live, as they name it themselves: an emulated GPU's are CPU tensors."""
        import torch

        return torch.device("cuda", 0) if self.kind == "cuda" else torch.device("cpu")


def check_device_name(name: str) -> str:
    """Return ``name`` when it is one of :data:`DEVICES`, else raise :class:`DeviceError`."""
    if name not in DEVICES:
        raise DeviceError(unknown_name("device", name, DEVICES, ALIASES))
    return name


def device_under_test(name: str) -> DeviceUnderTest:
    """Return the device to test on; ``auto`` is CUDA where it is usable, else the CPU.

    Raises:
        DeviceError: an unknown name, or CUDA where there is none.
    """
    import torch

    kind, _, profile = check_device_name(name).partition(":")
    if kind == EMULATED:
        return DeviceUnderTest(name, kind, profile or DEFAULT_PROFILE)
    usable = torch.cuda.is_available()
    if kind == "cuda" and not usable:
        raise DeviceError(
            f"device 'cuda' was asked for, but torch {torch.__version__} finds no usable GPU here; "
            f"{EMULATED!r} runs GPU code without one"
        )
    if kind == "auto":
        kind = "cuda" if usable else "cpu"
    return DeviceUnderTest(kind, kind)


def usable_device(name: str) -> torch.device:
    """Return where tensors of a test on device ``name`` live.

    Raises:
        DeviceError: as :func:`device_under_test`.
    """
    return device_under_test(name).torch_device
