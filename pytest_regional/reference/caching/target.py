"""The target of an artifact, apart from its key: versions of code generators, and the CPU and GPU.

It does not import torch at import: a process that only reads and writes artifacts starts quickly.
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import re
import sys
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from pathlib import Path

from pytest_regional._torch import cpp


@dataclass(frozen=True)
class TargetFingerprint:
    """The machine that compiled an artifact. Equal machines can use each other's artifacts.

    Attributes:
        python: implementation and minor version, with ABI flags, for pickles and extension modules.
        torch: full version and commit.
        triton: version, empty without.
        compiler: Inductor's C++ compiler and its version, empty without.
        cpu: platform, architecture, Inductor's vector instructions, and a digest of all instruction sets, because
            Inductor compiles with ``-march=native``.
        gpu: names, capabilities, runtime and driver, empty without.
    """

    python: str
    torch: str
    triton: str
    compiler: str
    cpu: str
    gpu: str

    def digest(self) -> str:
        """Return a hash over all fields."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def as_dict(self) -> dict[str, str]:
        """Return the fields by name."""
        return asdict(self)


def this_machine() -> TargetFingerprint:
    """Describe this process's machine: about 0.1 s once, then cached. A GPU is only initialized if there is one."""
    return _machine(cpp.cpu_capability_override())


@functools.cache
def _machine(cpu_capability: str) -> TargetFingerprint:
    return TargetFingerprint(
        python=f"{platform.python_implementation()} {sys.version_info[0]}.{sys.version_info[1]}{sys.abiflags}",
        torch=_torch(),
        triton=_triton(),
        compiler=_compiler(*cpp.cpp_compiler()),
        cpu=_cpu(cpu_capability),
        gpu=_gpu(),
    )


def _torch() -> str:
    import torch

    return f"{torch.__version__} ({torch.version.git_version or 'unknown commit'})"


def _triton() -> str:
    for package in ("triton", "pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu"):
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return ""


def _compiler(path: str, version_text: str) -> str:
    """Return a short name: the sentence with the version, else a digest of all output of ``--version``."""
    if not path:
        return ""
    found = re.search(r"[A-Za-z ]*\bversion [^_\n]+", version_text)
    said = found.group().strip() if found else hashlib.sha256(version_text.encode()).hexdigest()[:16]
    return f"{Path(path).name}: {said}"


def _cpu(capability: str) -> str:
    words = [sys.platform, platform.machine(), *cpp.vector_instructions(), f"features {_cpu_features()}"]
    return " ".join([*words, f"as {capability}"] if capability else words)


def _cpu_features() -> str:
    # "flags" on x86, "Features" on ARM, "features" on s390x.
    named = [line.partition(":")[2] for line in cpp.described_processor() if re.match(r"(flags|[Ff]eatures)\s*:", line)]
    features = sorted(set(named[0].split())) if named else [platform.processor()]
    return hashlib.sha256(" ".join(features).encode()).hexdigest()[:12]


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        return ""
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    names = sorted({f"{device.name} sm_{device.major}{device.minor}" for device in devices})
    return f"{', '.join(names)}; {_gpu_runtime()}; {_gpu_driver()}"


def _gpu_runtime() -> str:
    import torch

    return f"hip {torch.version.hip}" if torch.version.hip else f"cuda {torch.version.cuda}"


def _gpu_driver() -> str:
    """Return the driver's version, from a file, so that no driver is initialized."""
    for path in ("/proc/driver/nvidia/version", "/sys/module/amdgpu/version"):
        try:
            lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        found = re.search(r"\d+(\.\d+)+", lines[0] if lines else "")
        return f"driver {found.group()}" if found else "driver unknown"
    return "driver unknown"
