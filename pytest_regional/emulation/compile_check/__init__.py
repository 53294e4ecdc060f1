"""Compile Triton kernels for GPUs that are not here: PTX and cubin by the compilers that the triton wheel brings.

Kernels in, results out, each compiled once, by a ``worker`` process, because a bug of the compiler ends it. ``_child``
is what it runs.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Iterable, Sequence
from functools import cache

from pytest_regional._torch import installed_version
from pytest_regional.emulation.compile_check.worker import (
    DEFAULT_ARCHITECTURES,
    CompiledKernel,
    FailedKernel,
    KernelSource,
    Target,
    Worker,
    shared_worker,
    target_of,
)

Results = tuple[CompiledKernel | FailedKernel, ...]

_KNOWN: dict[tuple[str, ...], Results] = {}


def compile_kernels(
    kernels: Iterable[KernelSource],
    arch: Sequence[str] = DEFAULT_ARCHITECTURES,
    *,
    all_configs: bool = False,
    timeout: float = 300.0,
    worker: Worker | None = None,
) -> Results:
    """Compile each kernel for each architecture, in another process.

    Args:
        kernels: what to compile.
        arch: names of architectures.
        all_configs: every configuration that Inductor's autotuner would try, not the first alone.
        timeout: seconds for one kernel.
        worker: the process to compile in; that of this process by default.

    Raises:
        RegionalValueError: a name that is no architecture.
        EmulationError: the compiling process cannot start.
    """
    targets = {name: target_of(name) for name in arch}
    found: list[CompiledKernel | FailedKernel] = []
    for kernel in kernels:
        for name, target in targets.items():
            found += _results(kernel, name, target, all_configs, timeout, worker)
    return tuple(found)


def _results(
    kernel: KernelSource, arch: str, target: Target, all_configs: bool, timeout: float, worker: Worker | None
) -> Results:
    refused = _refusal(kernel, arch, target)
    if refused:
        return (refused,)
    key = _key(kernel, arch, all_configs)
    if key in _KNOWN:
        return _KNOWN[key]
    found = tuple((worker or shared_worker()).compile(kernel, arch, target, all_configs, timeout))
    if not any(isinstance(result, FailedKernel) and result.timed_out for result in found):
        _KNOWN[key] = found
    return found


def _refusal(kernel: KernelSource, arch: str, target: Target) -> FailedKernel | None:
    """AMD's backend ends its process on NVIDIA's instructions (triton 3.6 to 3.9): they are refused by name."""
    if target.backend != "hip" or "inline_asm" not in kernel.text:
        return None
    line = next(line.strip() for line in kernel.text.splitlines() if "inline_asm" in line)
    return FailedKernel(kernel.name, arch, "", "inline PTX: NVIDIA's instructions do not exist there", line)


def _key(kernel: KernelSource, arch: str, all_configs: bool) -> tuple[str, ...]:
    digest = hashlib.sha256(kernel.text.encode()).hexdigest()
    return digest, kernel.name, kernel.attribute, arch, "all" if all_configs else "first", *_versions()


@cache
def _versions() -> tuple[str, str]:
    return installed_version(), importlib.metadata.version("triton")


__all__ = [
    "DEFAULT_ARCHITECTURES",
    "CompiledKernel",
    "FailedKernel",
    "KernelSource",
    "compile_kernels",
]
