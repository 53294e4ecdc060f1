"""Descriptions of GPUs: what Inductor and Triton ask a device for when they generate code.

Figures are those that CUDA reports for the device (``cudaDeviceProp``), as NVIDIA's tuning guides for Ampere, Ada and
Hopper and the "Compute Capabilities" tables of the CUDA programming guide list them. Memory sizes are in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_regional._base.errors import RegionalError, RegionalValueError
from pytest_regional._base.text import unknown_name


@dataclass(frozen=True)
class DeviceProfile:
    """One GPU. The names are those of ``torch.cuda.get_device_properties``, which it stands in for."""

    key: str
    name: str
    major: int
    minor: int
    multi_processor_count: int
    total_memory: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    L2_cache_size: int
    max_threads_per_multi_processor: int
    clock_rate: int
    """In kHz."""
    memory_clock_rate: int
    """In kHz."""
    memory_bus_width: int
    """In bits."""
    shared_memory_per_block: int = 48 << 10
    regs_per_multiprocessor: int = 65536
    max_threads_per_block: int = 1024
    warp_size: int = 32
    gcnArchName: str = ""
    uuid: str = "emulated"
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    pci_bus_id: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0

    @property
    def compute_capability(self) -> tuple[int, int]:
        """Major and minor, as ``torch.cuda.get_device_capability`` returns them."""
        return self.major, self.minor

    @property
    def arch(self) -> str:
        """As compilers spell it: ``sm_90``."""
        return f"sm_{self.major}{self.minor}"


def _hopper(key: str, name: str, memory_gib: int, memory_clock_rate: int, memory_bus_width: int) -> DeviceProfile:
    return DeviceProfile(
        key,
        name,
        major=9,
        minor=0,
        multi_processor_count=132,
        total_memory=memory_gib << 30,
        shared_memory_per_block_optin=227 << 10,
        shared_memory_per_multiprocessor=228 << 10,
        L2_cache_size=50 << 20,
        max_threads_per_multi_processor=2048,
        clock_rate=1_980_000,
        memory_clock_rate=memory_clock_rate,
        memory_bus_width=memory_bus_width,
    )


PROFILES: dict[str, DeviceProfile] = {
    profile.key: profile
    for profile in (
        _hopper("h100", "NVIDIA H100 80GB HBM3", 79, 2_619_000, 5120),
        _hopper("h200", "NVIDIA H200", 140, 3_201_000, 6144),
        DeviceProfile(
            "a100",
            "NVIDIA A100-SXM4-80GB",
            major=8,
            minor=0,
            multi_processor_count=108,
            total_memory=79 << 30,
            shared_memory_per_block_optin=163 << 10,
            shared_memory_per_multiprocessor=164 << 10,
            L2_cache_size=40 << 20,
            max_threads_per_multi_processor=2048,
            clock_rate=1_410_000,
            memory_clock_rate=1_593_000,
            memory_bus_width=5120,
        ),
        DeviceProfile(
            "rtx4090",
            "NVIDIA GeForce RTX 4090",
            major=8,
            minor=9,
            multi_processor_count=128,
            total_memory=23 << 30,
            shared_memory_per_block_optin=99 << 10,
            shared_memory_per_multiprocessor=100 << 10,
            L2_cache_size=72 << 20,
            max_threads_per_multi_processor=1536,
            clock_rate=2_520_000,
            memory_clock_rate=10_501_000,
            memory_bus_width=384,
        ),
    )
}

DEFAULT_PROFILE = "h200"


def profile_named(name: str) -> DeviceProfile:
    """Return the description of the GPU called ``name``.

    Raises:
        RegionalValueError: there is none.
    """
    if name not in PROFILES:
        raise RegionalValueError(unknown_name("GPU", name, tuple(PROFILES)))
    return PROFILES[name]


class EmulationError(RegionalError, RuntimeError):
    """Emulated GPU code misbehaved, or cannot be emulated with what is installed."""


class UnsupportedByEmulationError(EmulationError, NotImplementedError):
    """Something that the emulation does not do, named; it is neither a pass nor a failure of what is tested."""


class MemoryFaultError(EmulationError):
    """A kernel read or wrote outside its tensors, read memory that nobody wrote, or got an argument it cannot take."""


class KernelAssertionError(EmulationError, AssertionError):
    """A ``device_assert`` in a kernel failed, such as Inductor's check of an indirect index."""
