"""The key of the outer cache: everything that decides what a Dynamo graph is compiled to."""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import platform
import re
import sys
from collections.abc import Hashable, Iterator, Mapping, Set
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.fx

from pytest_regional._errors import RegionalError
from pytest_regional._torch import cpp
from pytest_regional._torch.autograd_cache import GraphLookup
from pytest_regional._torch.config import compile_state
from pytest_regional._torch.fx_graphs import is_graph_module
from pytest_regional.reference.options import BackendOptions


@dataclass(frozen=True)
class TargetFingerprint:
    """Where an artifact was compiled. Two machines that are equal can use each other's.

    Attributes:
        python: implementation and minor version, with ABI flags: what pickles and extension modules depend on.
        torch: full version and commit.
        triton: version, empty without.
        compiler: Inductor's C++ compiler and its version, empty without.
        cpu: platform, architecture, vector instructions as Inductor sees them, and a digest of all instruction sets,
            because Inductor compiles with ``-march=native``.
        gpu: names, capabilities, runtime and driver, empty without.
    """

    python: str
    torch: str
    triton: str
    compiler: str
    cpu: str
    gpu: str

    def digest(self) -> str:
        """Return a hash over every field, whatever fields there are."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def as_dict(self) -> dict[str, str]:
        """Return the fields by name."""
        return asdict(self)


def this_machine() -> TargetFingerprint:
    """Describe where this process runs: about 0.1 s once, then free. A GPU is started only where there is one."""
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
    """Return a short name: the sentence with the version, else a digest of all that the compiler said of itself."""
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
    """Return the driver's version; a file, so that asking starts nothing."""
    for path in ("/proc/driver/nvidia/version", "/sys/module/amdgpu/version"):
        try:
            lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        found = re.search(r"\d+(\.\d+)+", lines[0] if lines else "")
        return f"driver {found.group()}" if found else "driver unknown"
    return "driver unknown"


_ATOMS = (bool, int, float, complex, str, bytes, type(None))
_TORCH_VALUES = (torch.dtype, torch.device, torch.layout, torch.memory_format)


class UnstableValueError(RegionalError, ValueError):
    """A value that enters a cache key has no text that another process would find the same."""


def stable_text(value: Any) -> str:
    """Describe ``value`` by type and content.

    Containers are described by their items, dataclasses by their fields, objects with a ``uuid()`` method (Inductor's
    custom passes) by what that returns.

    Raises:
        UnstableValueError: for anything else.
    """
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if type(value) in _ATOMS:
        return f"{type(value).__name__}:{value!r}"
    if isinstance(value, _TORCH_VALUES):
        return repr(value)
    if isinstance(value, Mapping):
        return _joined("{}", sorted(f"{stable_text(key)}={stable_text(item)}" for key, item in value.items()))
    if isinstance(value, Set):
        return _joined("{}", sorted(map(stable_text, value)))
    if isinstance(value, (list, tuple)):
        return _joined("[]", map(stable_text, value))
    if isinstance(value, slice):
        return f"slice{stable_text((value.start, value.stop, value.step))}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__qualname__}{stable_text(fields_of(value))}"
    return _by_uuid(value)


def fields_of(value: Any) -> dict[str, Any]:
    """Return every field of a dataclass that is part of keys: all but those with metadata ``in_key=False``."""
    return {
        field.name: getattr(value, field.name)
        for field in dataclasses.fields(value)
        if field.metadata.get("in_key", True)
    }


def digest(value: Any) -> str:
    """Return the SHA-256 of the stable text of ``value``, in hexadecimal."""
    return hashlib.sha256(stable_text(value).encode()).hexdigest()


def _by_uuid(value: Any) -> str:
    uuid = getattr(value, "uuid", None)
    found = uuid() if callable(uuid) and not isinstance(value, type) else None
    if not found:
        raise UnstableValueError(
            f"{value!r} of type {type(value).__qualname__} means nothing in another process: use numbers, strings, "
            f"containers or dataclasses of them, or give its class a uuid() method"
        )
    return f"{type(value).__qualname__}:uuid={stable_text(found)}"


def _joined(brackets: str, parts: Any) -> str:
    return f"{brackets[0]}{','.join(parts)}{brackets[1]}"


#: Raised whenever what is stored, or how it is found, changes its meaning.
FORMAT = 1


@dataclass(frozen=True)
class KeyDetails:
    """What enters the key; every field does, by looping over them.

    Attributes:
        format: of the entries.
        program: PyTorch's own key: ops and constants of the graph, metadata of inputs, settings of Inductor and
            AOTAutograd, versions, sources of user-defined kernels.
        annotations: those of every node, configs of regions among them, which PyTorch's key leaves out.
        options: of the backend.
        passes: uuids of the pre-grad passes that run after a miss; none when they ran before the lookup.
        state: what Dynamo guards of the process: threads, precision, determinism, autocast.
        machine: versions of what generates the code, and the processor that it is generated for.
    """

    format: int
    program: str
    annotations: tuple[str, ...]
    options: BackendOptions
    passes: tuple[Hashable, ...]
    state: str
    machine: TargetFingerprint

    def digest(self) -> str:
        """Return the key, in hexadecimal."""
        return digest(self)


def details_of(lookup: GraphLookup, options: BackendOptions, passes: tuple[Hashable, ...]) -> KeyDetails:
    """Collect what decides the result of compiling the graph that is looked up.

    Raises:
        UncacheableGraphError: PyTorch does not cache such a graph.
        UnstableValueError: an annotation holds a value that means nothing in another process.
    """
    return KeyDetails(
        FORMAT,
        lookup.key(),
        tuple(annotations_of(lookup.graph)),
        options,
        passes,
        str(compile_state()["global"]),
        this_machine(),
    )


def annotations_of(gm: torch.fx.GraphModule) -> Iterator[str]:
    """Yield a line for every annotated node of ``gm`` and of the bodies of its higher-order ops.

    Raises:
        UnstableValueError: naming the node.
    """
    texts: dict[int, str] = {}  # nodes of one ``with annotate(...)`` share a dictionary
    for path, module in gm.named_modules():
        if not is_graph_module(module):
            continue
        for index, node in enumerate(module.graph.nodes):
            custom = node.meta.get("custom")
            if custom:
                if id(custom) not in texts:
                    texts[id(custom)] = _text(node, custom)
                yield f"{path}:{index}:{texts[id(custom)]}"


def _text(node: torch.fx.Node, custom: Any) -> str:
    try:
        return stable_text(custom)
    except UnstableValueError as error:
        raise UnstableValueError(f"annotation of node {node.name}: {error}") from None
