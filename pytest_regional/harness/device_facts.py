"""What a device under test has: asked when a test runs, of the GPU itself, of a profile, or of this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass

from pytest_regional.harness.device import DeviceUnderTest

MIB = 1 << 20


@dataclass(frozen=True)
class DeviceFacts:
    """A device, as requirements see it.

    Attributes:
        name: such as ``NVIDIA H200``.
        kind: as :attr:`DeviceUnderTest.kind`.
        compute_capability: ``(major, minor)``, or ``None`` for a CPU.
        memory: in bytes, what tensors may fill; an emulated GPU keeps its tensors in this machine's memory.
        devices: how many such devices there are.
    """

    name: str
    kind: str
    compute_capability: tuple[int, int] | None
    memory: int
    devices: int = 1

    @property
    def is_gpu(self) -> bool:
        """Whether GPU code is under test, emulated or not."""
        return self.compute_capability is not None


def facts_of(device: DeviceUnderTest) -> DeviceFacts:
    """Return what ``device`` has."""
    if device.kind == "cuda":
        return _cuda()
    if device.profile is not None:
        return _emulated(device)
    return DeviceFacts("the CPU", device.kind, None, _host_memory())


def _cuda() -> DeviceFacts:
    import torch

    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    count = torch.cuda.device_count()
    return DeviceFacts(found.name, "cuda", (found.major, found.minor), found.total_memory, count)


def _emulated(device: DeviceUnderTest) -> DeviceFacts:
    from pytest_regional.emulation.device import PROFILES

    profile = PROFILES[device.profile or ""]
    memory = min(profile.total_memory, _host_memory())
    return DeviceFacts(f"{profile.name} (emulated)", device.kind, (profile.major, profile.minor), memory)


def _host_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
