"""What a kernel became for an architecture, or why it did not compile."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_regional._errors import RegionalValueError
from pytest_regional._text import unknown_name


@dataclass(frozen=True)
class KernelSource:
    """A Triton kernel as generated code holds it.

    Attributes:
        name: its name in the generated code.
        text: the Python module that defines it, settings and all.
        function: the name under which the module defines it; that of ``name`` unless the user wrote the kernel.
    """

    name: str
    text: str = field(repr=False)
    function: str = ""

    @property
    def attribute(self) -> str:
        """The module's name for it."""
        return self.function or self.name


@dataclass(frozen=True)
class CompiledKernel:
    """One kernel for one architecture, in one configuration.

    Attributes:
        kernel: its name.
        arch: such as ``sm_90``.
        config: block sizes, warps and stages, as Inductor's heuristics chose them.
        registers: per thread.
        shared_memory: bytes per program.
        stack: bytes per thread in local memory, for arrays and spills alike.
        spill_stores: bytes of registers written to local memory because there were too few (AMD: registers spilled).
        spill_loads: bytes read back.
        num_warps: per program.
        seconds: what compiling took.
        assembly: PTX, or AMD's.
        binary: cubin, or AMD's code object.
    """

    kernel: str
    arch: str
    config: str
    registers: int
    shared_memory: int
    stack: int
    spill_stores: int
    spill_loads: int
    num_warps: int
    seconds: float
    assembly: str = field(repr=False, default="")
    binary: bytes = field(repr=False, default=b"")

    @property
    def spills(self) -> int:
        """Bytes that go through local memory for want of registers, stores and loads."""
        return self.spill_stores + self.spill_loads


@dataclass(frozen=True)
class FailedKernel:
    """One kernel that does not compile for one architecture.

    Attributes:
        kernel: its name.
        arch: such as ``sm_90``.
        config: as :class:`CompiledKernel`; empty when the module itself failed.
        message: the compiler's words, first lines.
        source_line: the line of the kernel that they are about, where the compiler says.
        crashed: whether the compiler took its process down.
        timed_out: whether the compiler was ended because it took too long.
    """

    kernel: str
    arch: str
    config: str
    message: str
    source_line: str = ""
    crashed: bool = False
    timed_out: bool = False


DEFAULT_ARCHITECTURES = ("sm_80", "sm_90")
KNOWN_ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "gfx90a", "gfx942")


class Target(NamedTuple):
    """What Triton calls a target: the arguments of its ``GPUTarget``."""

    backend: str
    arch: int | str
    warp_size: int


def target_of(arch: str) -> Target:
    """Return the target called ``arch``.

    Raises:
        RegionalValueError: there is none of that name.
    """
    if arch not in KNOWN_ARCHITECTURES:
        raise RegionalValueError(unknown_name("architecture", arch, KNOWN_ARCHITECTURES))
    number = re.fullmatch(r"sm_(\d+)", arch)
    return Target("cuda", int(number[1]), 32) if number else Target("hip", arch, 64)
