"""Compile Triton kernels for GPUs that are not here: PTX and cubin by the compilers that the triton wheel brings.

Each kernel is compiled once, in a second process (``_child``), because a bug of the compiler can end it. That process
is kept until this one ends; where a kernel ends it, another is started.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.text import SecretVariables, unknown_name
from pytest_regional.emulation.device import EmulationError


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


Results = tuple[CompiledKernel | FailedKernel, ...]

_KNOWN: dict[tuple[KernelSource, str, bool], Results] = {}


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
    key = kernel, arch, all_configs
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


START_TIMEOUT = 180.0


class Worker:
    """A child process that compiles one kernel after another; started when it is first needed.

    Requests and answers are lines of JSON. What compilers print goes to a file, whose end tells why the child died.
    """

    def __init__(self, command: tuple[str, ...] = (sys.executable, "-m", f"{__name__}._child")) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._received = b""
        self._printed: IO[str] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def compile(
        self, kernel: KernelSource, arch: str, target: Target, all_configs: bool, timeout: float
    ) -> Iterator[CompiledKernel | FailedKernel]:
        """Compile one kernel for one target; yields a result for each configuration.

        Raises:
            EmulationError: the child cannot start.
        """
        self._start()
        request: dict[str, Any] = {"name": kernel.name, "attribute": kernel.attribute, "source": kernel.text}
        request |= {"arch": arch, "target": list(target), "all_configs": all_configs}
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        while True:
            answer = self._read(timeout)
            if answer is None:
                yield self._failure(kernel, arch, timeout)
                self.close()
                return
            if "end" in answer:
                return
            if "message" in answer:
                yield FailedKernel(**answer)
            else:
                yield CompiledKernel(**{**answer, "binary": base64.b64decode(answer["binary"])})

    def close(self) -> None:
        """End the child."""
        if self._process is not None:
            # With its children: ptxas may be at work for it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout, self._printed):
                if stream is not None:
                    stream.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._process = self._printed = self._folder = None
        self._received = b""

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._folder = tempfile.TemporaryDirectory(prefix="pytest-regional-kernels-")
        self._printed = open(Path(self._folder.name, "printed"), "w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed with the child
        self._process = subprocess.Popen(
            self._command,
            env=_environment(Path(self._folder.name)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            start_new_session=True,
        )
        if self._read(START_TIMEOUT) is None:
            printed = self._end_of_output()
            self.close()
            raise EmulationError(
                f"the process that compiles kernels did not start ({' '.join(self._command)}); it printed:\n{printed}"
            )

    def _read(self, timeout: float) -> dict[str, Any] | None:
        """Return the next answer, or ``None`` when the child ended or took too long."""
        while b"\n" not in self._received:
            if not self._has_more(timeout):
                return None
            chunk = os.read(self._output, 1 << 16)
            if not chunk:
                return None
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    @property
    def _output(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def _has_more(self, timeout: float) -> bool:
        return bool(select.select([self._output], [], [], timeout)[0])

    def _failure(self, kernel: KernelSource, arch: str, timeout: float) -> FailedKernel:
        """Return what became of a kernel for which no answer came."""
        if not self._has_more(0):
            message = f"the compiler did not finish within {timeout:g} s and was ended"
            return FailedKernel(kernel.name, arch, "", message, timed_out=True)
        assert self._process is not None
        status = self._process.wait(timeout=30)  # its end of the pipe is closed
        message = f"the compiler ended its process (exit status {status})\n{self._end_of_output()}"
        return FailedKernel(kernel.name, arch, "", message, crashed=True)

    def _end_of_output(self) -> str:
        assert self._printed is not None
        self._printed.seek(0)
        lines = [line.rstrip() for line in self._printed if line.strip()]
        # LLVM says first what is wrong, then where it stood.
        told = [line for line in lines if "ERROR" in line or "error" in line]
        return "\n".join((told or lines[-8:])[:8])


@cache
def shared_worker() -> Worker:
    """Return the one worker of this process."""
    worker = Worker()
    atexit.register(worker.close)
    return worker


def _environment(folder: Path) -> SecretVariables:
    package_parent = str(Path(__file__).resolve().parents[3])
    search_path = os.pathsep.join(filter(None, [package_parent, os.environ.get("PYTHONPATH")]))
    # Its own caches; never interpreted; no GPU is touched; ptxas says what it used, for every kernel.
    own = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TRITON_CACHE_DIR": str(folder / "triton")}
    settings = {"CUDA_VISIBLE_DEVICES": "", "TRITON_ALWAYS_COMPILE": "1", "TRITON_DUMP_PTXAS_LOG": "1"}
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ours = {"PYTHONPATH": search_path, "PYTEST_REGIONAL_KERNELS": str(folder), **own, **settings}
    return SecretVariables({**kept, **ours})


def nvidia_resources(log: str) -> dict[str, int]:
    """Read what ``ptxas -v`` says of the one kernel it compiled.

    Raises:
        ValueError: it does not say it in the words of ptxas 12 and 13.
    """
    memory = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    registers = re.search(r"Used (\d+) registers", log)
    if memory is None or registers is None:
        raise ValueError(f"ptxas did not say which registers and how much memory the kernel uses: {log!r}")
    stack, stores, loads = map(int, memory.groups())
    return {"registers": int(registers[1]), "stack": stack, "spill_stores": stores, "spill_loads": loads}


def amd_resources(assembly: str) -> dict[str, int]:
    """Read the metadata at the end of AMD's assembly; it counts spilled registers, not bytes, and loads not at all."""
    found = {name: int(value) for name, value in re.findall(r"\.(\w+):\s+(\d+)\s*$", assembly, re.MULTILINE)}
    spills = found["vgpr_spill_count"] + found["sgpr_spill_count"]
    stack = found["private_segment_fixed_size"]
    return {"registers": found["vgpr_count"], "stack": stack, "spill_stores": spills, "spill_loads": 0}
