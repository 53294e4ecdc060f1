"""What the harness knows of the device under test, and what a test may ask of it."""

from __future__ import annotations

import os
import unittest
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pytest_regional._base.errors import RegionalError
from pytest_regional._base.text import plural, unknown_name
from pytest_regional.backends.capabilities import Support, supported, unsupported
from pytest_regional.harness.codegen.events import CodeLookupError
from pytest_regional.harness.codegen.kernels import Wrapper
from pytest_regional.harness.devices.device import PROFILES, DeviceFacts, unmet_requirement
from pytest_regional.harness.record import CompileRecord, GeneratedCode

if TYPE_CHECKING:
    from pytest_regional.emulation import Emulation
    from pytest_regional.emulation.compile_check import CompiledKernel, FailedKernel, KernelSource
    from pytest_regional.harness.devices.device import DeviceUnderTest

CONFIGS = ("first", "all")


class KernelCompileError(RegionalError, AssertionError):
    """Kernels that do not compile; the message says which, for which GPU, what the compiler says, and of which line."""


class KernelResourceError(RegionalError, AssertionError):
    """Kernels that use more of a GPU than was asserted; the message lists them."""


@dataclass(frozen=True)
class KernelReport:
    """What the kernels of a record became, by kernel, architecture and configuration; ``str()`` of it is a table."""

    kernels: tuple[CompiledKernel, ...]

    def __iter__(self) -> Iterator[CompiledKernel]:
        return iter(self.kernels)

    def __len__(self) -> int:
        return len(self.kernels)

    def __str__(self) -> str:
        return _table(self.kernels)

    def assert_no_spills(self) -> KernelReport:
        """Assert that no kernel spills registers to local memory.

        Raises:
            KernelResourceError: one does.
        """
        advice = "Smaller blocks, or more warps, need fewer registers per thread."
        return self._assert_none([kernel for kernel in self.kernels if kernel.spills], "spill registers", advice)

    def assert_shared_memory(self, *, at_most: int) -> KernelReport:
        """Assert that no program of a kernel uses more than ``at_most`` bytes of shared memory.

        Raises:
            KernelResourceError: one does.
        """
        greedy = [kernel for kernel in self.kernels if kernel.shared_memory > at_most]
        advice = "Smaller blocks, or fewer stages, need less."
        return self._assert_none(greedy, f"use more than {at_most} bytes of shared memory", advice)

    def _assert_none(self, wrong: Sequence[CompiledKernel], what: str, advice: str) -> KernelReport:
        if wrong:
            found = f"{len(wrong)} of {plural(len(self.kernels), 'compiled kernel')} {what}"
            raise KernelResourceError(f"{found}:\n{_table(wrong)}\n{advice}")
        return self


def kernels_of(record: CompileRecord | GeneratedCode) -> tuple[KernelSource, ...]:
    """Return the Triton kernels in the generated code of ``record``, Inductor's and the user's, once each."""
    from pytest_regional.emulation.compile_check import KernelSource

    code = record.code if isinstance(record, CompileRecord) else record
    wrappers = [Wrapper.of(source.text) for source in code]
    definitions = [definition for wrapper in wrappers for definition in wrapper.kernels.values()]
    triton = [KernelSource(d.name, d.source, d.attribute) for d in definitions if d.language == "triton"]
    if not triton:
        languages = {d.language for d in definitions}
        there = f"kernels in {', '.join(sorted(languages))}" if languages else "extern calls alone"
        held = f"{plural(len(wrappers), 'piece')} of generated code with {there}" if wrappers else "no generated code"
        raise CodeLookupError(
            f"no Triton kernel to compile: the record holds {held}. Inductor writes Triton for a GPU: run with "
            f"--regional-device=cuda or --regional-device=cuda-emulated, on a program with something to generate"
        )
    return tuple(dict.fromkeys(triton))


def _advice(failed: Sequence[FailedKernel]) -> str:
    if any(one.timed_out for one in failed):
        return "Large blocks take ptxas long: smaller ones, or timeout= with more seconds. A GPU's user waits as long."
    if any(one.crashed for one in failed):
        return "A compiler that ends its process is defective: report it to Triton with the kernel's source."
    return (
        "A feature that a GPU lacks (fp8 below sm_89) is a true limit: leave that GPU out of arch=, or change the "
        "program. Anything else is a defect of the kernel: str(record.code) holds its source."
    )


def _table(kernels: Sequence[CompiledKernel]) -> str:
    rows = [["kernel", "arch", "registers", "shared", "stack", "spills", "warps", "seconds", "config"]]
    for one in kernels:
        used = map(str, (one.registers, one.shared_memory, one.stack, one.spills, one.num_warps))
        rows.append([one.kernel, one.arch, *used, f"{one.seconds:.2f}", one.config])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def facts_of(device: DeviceUnderTest) -> DeviceFacts:
    """Return what ``device`` has."""
    if device.kind == "cuda":
        found = torch.cuda.get_device_properties(torch.cuda.current_device())
        count = torch.cuda.device_count()
        return DeviceFacts(found.name, "cuda", (found.major, found.minor), found.total_memory, count)
    if device.profile is not None:
        profile = PROFILES[device.profile]
        memory = min(profile.total_memory, _host_memory())
        return DeviceFacts(f"{profile.name} (emulated)", device.kind, (profile.major, profile.minor), memory)
    return DeviceFacts("the CPU", device.kind, None, _host_memory())


def _host_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def device_limit(device: DeviceUnderTest, capability: str) -> Support:
    """Return whether ``device`` lets a backend have ``capability``: most do not depend on the device."""
    if capability != "flex_attention_backward" or device.kind != "cpu":
        return supported()
    return unsupported("torch refuses the backward of flex_attention on CPU in its Python front end")


class OnDevice:
    """The part of the harness that is about its device."""

    device_under_test: DeviceUnderTest  # the device by name; of an emulated GPU, its profile
    emulation: Emulation | None = None  # what emulation has seen so far; ``None`` where nothing is emulated

    def require_device(self, *requirements: str) -> DeviceFacts:
        """Skip the test unless the device has what ``requirements`` say: ``compute_capability>=8.9``, ``fp8``.

        Returns name, compute capability and memory of the device; of an emulated one, those of its profile.

        Raises:
            unittest.SkipTest: pytest's skip, too; the reason says what is needed and what there is.
            RegionalValueError: a requirement that is not understood.
        """
        facts = facts_of(self.device_under_test)
        reason = unmet_requirement(requirements, facts)
        if reason:
            raise unittest.SkipTest(reason)
        return facts

    @staticmethod
    def assert_kernels_compile(
        record: CompileRecord | GeneratedCode,
        arch: Sequence[str] | str | None = None,
        *,
        configs: str = "first",
        timeout: float = 300.0,
    ) -> KernelReport:
        """Compile every Triton kernel of ``record``; no GPU is needed; see ``docs/kernel-compile-check.md``.

        Args:
            record: what :meth:`Regional.run` returned, or its code.
            arch: names such as ``"sm_90"`` or, on request only, ``"gfx942"``; by default ``"sm_80"`` and
                ``"sm_90"``.
            configs: ``"first"``, or ``"all"`` that Inductor's autotuner would try.
            timeout: seconds after which the compiler is ended, for each kernel and architecture.

        Raises:
            KernelCompileError: some do not compile.
            CodeLookupError: the record holds none.
            RegionalValueError: a name that is no architecture.
            EmulationError: the compiling process cannot start.
        """
        # The compile check is an optional part.
        from pytest_regional.emulation.compile_check import (
            DEFAULT_ARCHITECTURES,
            CompiledKernel,
            FailedKernel,
            compile_kernels,
        )

        if configs not in CONFIGS:
            raise ValueError(unknown_name("configs", configs, CONFIGS))
        architectures = (arch,) if isinstance(arch, str) else tuple(DEFAULT_ARCHITECTURES if arch is None else arch)
        if not architectures:
            raise ValueError("arch is empty: name at least one architecture")
        found = compile_kernels(kernels_of(record), architectures, all_configs=configs == "all", timeout=timeout)
        failed = [result for result in found if isinstance(result, FailedKernel)]
        if failed:
            parts = [f"{len(failed)} of {plural(len(found), 'kernel compilation')} failed"]
            for one in failed:
                config = f" ({one.config})" if one.config else ""
                parts.append(f"{one.kernel} for {one.arch}{config}:")
                parts += [f"    {line}" for line in one.message.splitlines()]
                parts += [f"  at: {one.source_line}"] if one.source_line else []
            raise KernelCompileError("\n".join([*parts, _advice(failed)]))
        return KernelReport(tuple(result for result in found if isinstance(result, CompiledKernel)))
