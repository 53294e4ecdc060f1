"""The patch points between PyTorch and a CUDA device, where a described device takes its place.

Each point is an attribute that PyTorch looks up when it generates or loads code for a GPU. The set was found by leaving
out one at a time; it is the same for torch 2.11, 2.13 and 2.15 except where ``since`` says otherwise.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pytest_regional._torch import MissingTorchSymbolError, private_module, symbol
from pytest_regional._torch.patching import COMPILE_STAGES, PatchPoint, missing
from pytest_regional._torch.triton import DRIVER_CHOICE

_INTERFACE = "torch._dynamo.device_interface"


DEVICE_POINTS: dict[str, PatchPoint] = {
    "is_available": PatchPoint("torch.cuda", "is_available", "whether Triton and GPU passes are of use"),
    "device_count": PatchPoint("torch.cuda", "device_count", "collectives' cost model"),
    "current_device": PatchPoint("torch.cuda", "current_device", "flex attention"),
    "accelerator_index": PatchPoint(
        "torch.accelerator", "current_device_index", "the cache key of a graph without inputs, where torch has CUDA"
    ),
    "properties": PatchPoint("torch.cuda", "get_device_properties", "sizes of blocks and grids"),
    "capability": PatchPoint("torch.cuda", "get_device_capability", "which types and templates there are"),
    "device_context": PatchPoint("torch.cuda", "device", "code generation enters the device of the graph"),
    "rng_state": PatchPoint("torch.cuda", "get_rng_state", "code generation preserves the generators"),
    "set_rng_state": PatchPoint("torch.cuda", "set_rng_state", "code generation preserves the generators"),
    "current_stream": PatchPoint("torch.cuda", "current_stream", "which stream code is generated for"),
    "synchronize": PatchPoint("torch.cuda", "synchronize", "around code that is loaded"),
    "capturing": PatchPoint("torch.cuda", "is_current_stream_capturing", "Dynamo, from 2.15 on"),
    "interface_properties": PatchPoint(
        f"{_INTERFACE}:CudaInterface", "get_device_properties", "bound at import", static=True
    ),
    "worker_properties": PatchPoint(
        f"{_INTERFACE}:CudaInterface.Worker", "get_device_properties", "heuristics", static=True
    ),
    "interface_capability": PatchPoint(
        f"{_INTERFACE}:CudaInterface", "get_compute_capability", "heuristics", static=True
    ),
    "gpu_context": PatchPoint(
        "torch._subclasses.fake_tensor", "init_gpu_context", "makes a first tensor on the device"
    ),
    "empty_strided": PatchPoint("torch._C._dynamo.guards", "_empty_strided_cuda", "buffers of generated code"),
    "constants": PatchPoint("torch._inductor.graph:GraphLowering", "constant_name", "copies constants to the device"),
    "compile_kernel": PatchPoint(
        "torch._inductor.async_compile:AsyncCompile", "triton", "generated code compiles kernels"
    ),
    "process_pool": PatchPoint(
        "torch._inductor.async_compile:AsyncCompile", "use_process_pool", "kernels of other processes"
    ),
    "wake_pool": PatchPoint(
        "torch._inductor.async_compile:AsyncCompile", "wakeup", "starts other processes", static=True
    ),
    "choices": PatchPoint(
        "torch._inductor.select_algorithm:AlgorithmSelectorCache", "__call__", "times kernels, takes one"
    ),
    "triton_driver": DRIVER_CHOICE,
}
"""Replaced while Inductor generates or loads code, and restored at once: other code must not see the device."""

PROGRAM_POINTS: dict[str, PatchPoint] = {
    "has_triton": PatchPoint("torch.utils._triton", "has_triton", "Dynamo looks for kernels that the user wrote"),
    "flex_device": PatchPoint("torch.nn.attention.flex_attention", "_validate_device", "refuses to train on a CPU"),
    "flex_options": PatchPoint("torch.nn.attention.flex_attention", "_apply_kernel_options", "no logsumexp on a CPU"),
}
"""Replaced while programs compiled for the described device run."""

OUTPUT_POINTS: dict[str, PatchPoint] = {
    "compile": PatchPoint("torch._inductor.compile_fx", "_compile_fx_inner", "every graph that Inductor compiles"),
    "load": COMPILE_STAGES["code_loaded"],
    "finish": PatchPoint(
        "torch._inductor.output_code:CompiledFxGraph", "post_compile", "compiled or loaded, before a call"
    ),
}
"""Where emulation intercepts what Inductor compiles and loads, whichever backend called it."""


def missing_points() -> list[str]:
    """Return the points that the installed torch lacks, as ``holder.attribute``; none if it is supported."""
    return [name for points in (DEVICE_POINTS, PROGRAM_POINTS, OUTPUT_POINTS) for name in missing(points)]


@functools.cache
def _device_caches() -> tuple[Callable[[], None], ...]:
    """Return the functions that clear cached answers about devices.

    Functions under ``functools.cache`` in ``torch.utils._triton`` and ``torch._inductor.utils``, and those of
    ``DeviceProperties`` and ``CacheBase`` (2.11 to 2.15). Their results are cheap to compute again, so all are cleared.
    """
    names = "torch.utils._triton", "torch._inductor.utils"
    members = [member for name in names for member in vars(private_module(name)).values()]
    members.append(symbol("torch._inductor.runtime.hints", "DeviceProperties.create"))
    members.append(symbol("torch._inductor.codecache", "CacheBase.get_system"))
    return tuple(member.cache_clear for member in members if hasattr(member, "cache_clear"))


def clear_device_answers() -> None:
    """Clear PyTorch's cached answers about devices."""
    for clear in _device_caches():
        clear()
    for name in ("caching_worker_device_properties", "caching_worker_current_devices"):
        symbol(_INTERFACE, name).pop("cuda", None)


_META, _CUDA = 14, 1
"""``c10::DeviceType`` of meta and CUDA (``c10/core/DeviceType.h``; the numbers are part of the file format)."""


@contextlib.contextmanager
def cuda_device_guard() -> Iterator[None]:
    """Let C++ code enter CUDA as a device of tensors without memory, in CUDA-less builds of torch.

    Builds with CUDA have such a guard (``torch._C._ensureCUDADeviceGuardSet``). In others the registry of guards in
    ``libc10`` has no entry for CUDA, and ``contiguous()`` of a fake CUDA tensor fails in C++. Meanwhile the entry is
    the meta device's guard, which does nothing (2.13, 2.15).
    """
    import torch

    if torch.version.cuda or torch.version.hip:
        symbol("torch._C", "_ensureCUDADeviceGuardSet")()
        yield
        return
    registry = _guard_registry()
    before = registry[_CUDA]
    registry[_CUDA] = before or registry[_META]
    try:
        yield
    finally:
        registry[_CUDA] = before


@functools.cache
def _guard_registry() -> Any:
    import torch

    name = "_ZN3c104impl26device_guard_impl_registryE"
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    try:
        return (ctypes.c_void_p * (_META + 1)).in_dll(ctypes.CDLL(str(library)), name)
    except (OSError, ValueError) as error:
        raise MissingTorchSymbolError(
            f"libc10 of torch {torch.__version__} has no {name}: a build without CUDA cannot emulate a GPU on this "
            f"platform"
        ) from error


@contextlib.contextmanager
def wrapper_code_for_cpu_tensors() -> Iterator[None]:
    """Make generated wrappers enter no device, set none and fetch no stream.

    ``register_device_op_overrides`` of ``torch._inductor.codegen.common`` defines how these statements are written
    (2.11 to 2.15).
    """
    common = "torch._inductor.codegen.common"
    symbol(common, "init_backend_registration")()
    symbol(common, "get_device_op_overrides")("cuda")  # imports and registers PyTorch's own
    table = symbol(common, "device_op_overrides_dict")
    before = table["cuda"]
    table["cuda"] = _overrides(type(before))()
    try:
        yield
    finally:
        table["cuda"] = before


def _overrides(base: type) -> type:
    class EmulatedDeviceOverrides(base):  # type: ignore[misc]  # a class found at run time
        """Python expressions and statements that need no device."""

        def import_get_raw_stream_as(self, name: str) -> str:
            return f"{name} = lambda device: 0"

        def set_device(self, device_idx: Any) -> str:
            return "pass"

        def synchronize(self) -> str:
            return "pass"

        def device_guard(self, device_idx: Any) -> str:
            return "__import__('contextlib').nullcontext()"

        def current_device_idx_expr(self) -> str:
            return "0"

    return EmulatedDeviceOverrides
