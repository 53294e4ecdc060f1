"""Compile Triton kernels for GPUs that are not here: PTX and cubin by the compilers that the triton wheel brings.

* ``results``: what a kernel became, or why it did not.
* ``targets``: the architectures, by name.
* ``worker``: the process that compiles, apart from this one: what a compiler bug ends is that process.
* ``check``: kernels in, results out, each compiled once.
"""

from __future__ import annotations

from pytest_regional.emulation.compile_check.check import compile_kernels
from pytest_regional.emulation.compile_check.results import (
    DEFAULT_ARCHITECTURES,
    CompiledKernel,
    CompileWorkerError,
    FailedKernel,
    KernelSource,
    UnknownArchitectureError,
)

__all__ = [
    "DEFAULT_ARCHITECTURES",
    "CompileWorkerError",
    "CompiledKernel",
    "FailedKernel",
    "KernelSource",
    "UnknownArchitectureError",
    "compile_kernels",
]
