"""Triton: language, interpreter, runtime, compiler; patch points for a described GPU; what a first compile imports.

Checked with triton 3.6 (torch 2.11) and 3.9 (torch 2.13 and 2.15). None needs a GPU.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import functools
import importlib
import importlib.util
import pkgutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from pytest_regional._torch import MissingTorchSymbolError, calling, fetching, importing, private_module, symbol
from pytest_regional._torch.patching import COMPILE_STAGES, PatchPoint, missing

_INTERPRETER = "triton.runtime.interpreter"

_LANGUAGE = "triton.language"

#: The language's builtins and types (3.6 to 3.9).
language_core = importing("triton.language.core")
#: Stubs that a compiler replaces with a backend's functions.
library_stub = importing("triton.language.extra.libdevice")
#: Overloads by type, each naming a ``__nv_*`` function.
cuda_library = importing("triton.language.extra.cuda.libdevice")
#: Its ``create_*`` methods compute with numpy.
interpreter_builder_class = fetching(_INTERPRETER, "InterpreterBuilder")
#: Makes a frozen dataclass.
interpreter_options = calling(_INTERPRETER, "InterpreterOptions")
#: Checks and promotes types before it calls its builder.
semantic_class = fetching("triton.language.semantic", "TritonSemantic")
#: Whether something is a builtin of the language: a function that needs a ``_semantic``.
is_builtin = calling(_LANGUAGE, "core.is_builtin")
#: What a kernel's ``while`` accepts.
loop_condition_class = fetching(_LANGUAGE, "condition")
#: Made by ``@triton.jit``; calling one outside a kernel raises.
jit_function_class = fetching("triton.runtime.jit", "JITFunction")
#: Returns a launch argument's type name in a signature.
type_of_argument = calling("triton.runtime.jit", "mangle_type")
#: A host's description of a tensor for block loads.
tensor_descriptor_class = fetching("triton.tools.tensor_descriptor", "TensorDescriptor")
#: Given ``cuda``, 90 and the size of a warp: an NVIDIA GPU of 9.0.
gpu_target = calling("triton.backends.compiler", "GPUTarget")

DRIVER_CHOICE = PatchPoint("torch._inductor.runtime.triton_helpers", "set_driver_to_gpu")  # kernels choose a driver
"""Each module of kernels calls it when it is imported (torch 2.11 to 2.15)."""


def builtin_owners() -> tuple[Any, ...]:
    """Return the modules and classes with the builtins that kernels call (3.6 to 3.9).

    ``triton.language.core`` and ``triton.language`` hold the same functions. Kernels use one, Triton's own library of
    kernel functions the other.
    """
    core = language_core()
    descriptor = symbol(_LANGUAGE, "core.tensor_descriptor_base")
    return private_module(_LANGUAGE), core, private_module("triton.language.math"), core.tensor, descriptor


def unwrapping() -> tuple[Any, str, Any]:
    """Return owner, name and function with which Triton unwraps ``constexpr`` arguments, one by one (3.6 to 3.9)."""
    core = language_core()
    return core, "_unwrap_if_constexpr", symbol(_LANGUAGE, "core._unwrap_if_constexpr")


def require_attribute(owner: Any, name: str) -> None:
    """Check that an attribute of Triton exists before it is replaced.

    Raises:
        MissingTorchSymbolError: it does not exist: Triton has changed, and replacing it would have no effect.
    """
    bases = owner.__mro__ if isinstance(owner, type) else (owner,)
    if not any(name in vars(base) for base in bases):
        place = f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else owner.__name__
        raise MissingTorchSymbolError(
            f"{place}.{name} does not exist in triton {private_module('triton').__version__}; kernels are interpreted "
            f"with triton 3.6 to 3.9. Install one of them, or a newer pytest-regional."
        )


def jit_source(function: Any) -> str:
    """Return a jitted function's text from ``def`` on: ``JITFunction.src`` (3.6 to 3.9)."""
    return str(function.src)


def jit_key(function: Any) -> str:
    """Return what tells a jitted function, with all that it calls and its constants, from others; empty if unknown.

    ``JITFunction.cache_key`` (3.6 to 3.9), which raises RuntimeError for what Triton would not compile, and the globals
    that it leaves out: ``used_global_vals``.
    """
    try:
        key = function.cache_key
    except RuntimeError:
        return ""
    return f"{key} {sorted((name, repr(value)) for (name, _), (value, _) in function.used_global_vals.items())}"


def jit_first_line(function: Any) -> int:
    """Return the line of a jitted function's ``def``, which decorators precede, in its file (3.6 to 3.9)."""
    before = next((i for i, line in enumerate(function.raw_src) if line.strip().startswith("def ")), 0)
    return int(function.starting_line_number) + before


def jit_parameters(function: Any) -> list[Any]:
    """Return a jitted function's ``JITFunction.params``, with name, is_constexpr, default (3.6 to 3.9)."""
    return list(function.params)


def inductor_helpers() -> Any:
    """Return the functions that Inductor's kernels call, if a kernel has imported them (torch 2.11 to 2.15)."""
    return sys.modules.get("torch._inductor.runtime.triton_helpers")


def kernel_type(mangled: str) -> Any:
    """Return the ``tl.dtype`` or pointer type for a signature's name such as ``*fp32`` or ``i64`` (3.6 to 3.9)."""
    return symbol(_LANGUAGE, "str_to_ty")(mangled, None)


_DTYPES = {
    "i1": "bool",
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp64": "float64",
    "fp8e4nv": "float8_e4m3fn",
    "fp8e5": "float8_e5m2",
    "fp8e4b8": "float8_e4m3fnuz",
    "fp8e5b16": "float8_e5m2fnuz",
}


def dtype_of_pointer(mangled: str) -> Any:
    """Return torch's dtype of what a pointer of Inductor's signatures, such as ``*fp32``, points to."""
    return getattr(torch, _DTYPES[str(mangled).lstrip("*k")])


def grid_of_inductor_kernel(inductor_meta: Any, config: Any, values: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return the grid Inductor's launcher would compute of the values of all names in its expressions."""
    expression = symbol("torch._inductor.runtime.triton_heuristics", "GridExpr").from_meta(inductor_meta, config)
    x, y, z = expression.eval_slow(values)
    return x, y, z


LAUNCHES = {
    "jitted": PatchPoint("triton.runtime.jit:JITFunction", "run"),  # starts a kernel
    "autotuned": PatchPoint("triton.runtime.autotuner:Autotuner", "run"),  # times configurations, starts a kernel
}
"""Where kernels written by users are launched (triton 3.6 to 3.9)."""


@contextlib.contextmanager
def active_driver(driver: Any) -> Iterator[None]:
    """Make ``driver`` Triton's active driver, which is None before the first (3.6 to 3.9)."""
    holder = symbol("triton.runtime.driver", "driver")
    before = holder._active
    holder.set_active(driver)
    try:
        yield
    finally:
        holder._active = before


def stand_alone() -> None:
    """Let modules of kernels be imported in a process that never launches one.

    Each calls :data:`DRIVER_CHOICE`, which fails without a GPU. Only for a process that does nothing else: it is not
    restored.
    """
    DRIVER_CHOICE.current()
    DRIVER_CHOICE.container().set_driver_to_gpu = lambda: None
    symbol("torch._inductor.runtime.triton_heuristics", "CachingAutotuner")


def torch_code_key() -> str:
    """Return PyTorch's digest of versions and of Inductor's sources: half a second, once per process."""
    digest: bytes = symbol("torch._inductor.codecache", "torch_key")()
    return digest.hex()


def code_keys() -> tuple[str, ...]:
    """Return :func:`torch_code_key` and Triton's own digest, which takes as long; each cache's keys have both."""
    return torch_code_key(), symbol("torch._inductor.runtime.triton_compat", "triton_key")()


def kernel_in(path: Path, name: str) -> Any:
    """Import the module at ``path`` and return its kernel ``name``: a ``CachingAutotuner``."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def configs_of(tuner: Any) -> list[Any]:
    """Return the configurations that ``tuner`` benchmarks: ``CachingAutotuner.configs``."""
    return list(tuner.configs)


def config_text(config: Any) -> str:
    """Return a ``triton.Config`` as text: block sizes, warps, stages."""
    sizes = ", ".join(f"{name}={value}" for name, value in config.kwargs.items())
    return f"{sizes + ', ' if sizes else ''}num_warps={config.num_warps}, num_stages={config.num_stages}"


def compile_config(tuner: Any, config: Any, backend: str, arch: int | str, warp_size: int) -> Any:
    """Compile ``tuner``'s function like the tuner, with another target; returns a ``CompiledKernel``."""
    meta = tuner._create_compile_meta(config)
    options = tuner._create_compile_options(config, meta)
    if backend == "hip":
        options = {name: value for name, value in options.items() if name not in _NVIDIA_OPTIONS}
    source = symbol("triton.compiler", "ASTSource")(tuner.fn, meta["signature"], meta["constants"], meta["configs"][0])
    target = gpu_target(backend, arch, warp_size)
    return symbol("triton", "compile")(source, target=target, options=options)


_NVIDIA_OPTIONS = frozenset({"launch_cooperative_grid", "launch_pdl", "enable_reflect_ftz"})


def compiler_message(error: BaseException, tuner: Any) -> tuple[str, str]:
    """Return the message of a compiler's error, and the kernel's line if the error names it.

    ``triton.compiler.errors.CompilationError`` repeats the source before its message, once for every enclosing
    function; the innermost cause names the error's location.
    """
    line = ""
    kind = symbol("triton.compiler.errors", "CompilationError")
    while isinstance(error, kind):
        line = _line_at(error, tuner) or line
        if error.__cause__ is None:
            return f"{type(error).__name__}: {error.error_message or error}", line
        error = error.__cause__
    return f"{type(error).__name__}: {error}", line


def _line_at(error: Any, tuner: Any) -> str:
    if isinstance(error.node, ast.FunctionDef):
        return ""  # inside a loop Triton names the whole function, whose first line is of no use
    lines = (error.src or tuner.fn.src).splitlines()
    number = getattr(error.node, "lineno", 0)
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""


_INTERFACE = "torch._dynamo.device_interface"


DEVICE_POINTS: dict[str, PatchPoint] = {
    "is_available": PatchPoint("torch.cuda", "is_available"),  # whether Triton and GPU passes are of use
    "device_count": PatchPoint("torch.cuda", "device_count"),  # collectives' cost model
    "current_device": PatchPoint("torch.cuda", "current_device"),  # flex attention
    # the cache key of a graph without inputs, where torch has CUDA
    "accelerator_index": PatchPoint("torch.accelerator", "current_device_index"),
    "properties": PatchPoint("torch.cuda", "get_device_properties"),  # sizes of blocks and grids
    "capability": PatchPoint("torch.cuda", "get_device_capability"),  # which types and templates there are
    "device_context": PatchPoint("torch.cuda", "device"),  # code generation enters the device of the graph
    "rng_state": PatchPoint("torch.cuda", "get_rng_state"),  # code generation preserves the generators
    "set_rng_state": PatchPoint("torch.cuda", "set_rng_state"),  # code generation preserves the generators
    "current_stream": PatchPoint("torch.cuda", "current_stream"),  # which stream code is generated for
    "synchronize": PatchPoint("torch.cuda", "synchronize"),  # around code that is loaded
    "capturing": PatchPoint("torch.cuda", "is_current_stream_capturing"),  # Dynamo, from 2.15 on
    # bound at import
    "interface_properties": PatchPoint(f"{_INTERFACE}:CudaInterface", "get_device_properties", static=True),
    # heuristics, and the next
    "worker_properties": PatchPoint(f"{_INTERFACE}:CudaInterface.Worker", "get_device_properties", static=True),
    "interface_capability": PatchPoint(f"{_INTERFACE}:CudaInterface", "get_compute_capability", static=True),
    # makes a first tensor on the device
    "gpu_context": PatchPoint("torch._subclasses.fake_tensor", "init_gpu_context"),
    "empty_strided": PatchPoint("torch._C._dynamo.guards", "_empty_strided_cuda"),  # buffers of generated code
    "constants": PatchPoint("torch._inductor.graph:GraphLowering", "constant_name"),  # copies constants to the device
    # generated code compiles kernels
    "compile_kernel": PatchPoint("torch._inductor.async_compile:AsyncCompile", "triton"),
    # kernels of other processes, and what starts these
    "process_pool": PatchPoint("torch._inductor.async_compile:AsyncCompile", "use_process_pool"),
    "wake_pool": PatchPoint("torch._inductor.async_compile:AsyncCompile", "wakeup", static=True),
    # times kernels, takes one
    "choices": PatchPoint("torch._inductor.select_algorithm:AlgorithmSelectorCache", "__call__"),
    "triton_driver": DRIVER_CHOICE,
}
"""Replaced while Inductor generates or loads code, and restored at once: other code must not see the device."""

PROGRAM_POINTS: dict[str, PatchPoint] = {
    "has_triton": PatchPoint("torch.utils._triton", "has_triton"),  # Dynamo looks for kernels that the user wrote
    "flex_device": PatchPoint("torch.nn.attention.flex_attention", "_validate_device"),  # refuses to train on a CPU
    "flex_options": PatchPoint("torch.nn.attention.flex_attention", "_apply_kernel_options"),  # no logsumexp on a CPU
}
"""Replaced while programs compiled for the described device run."""

OUTPUT_POINTS: dict[str, PatchPoint] = {
    "compile": PatchPoint("torch._inductor.compile_fx", "_compile_fx_inner"),  # every graph that Inductor compiles
    "load": COMPILE_STAGES["code_loaded"],
    # compiled or loaded, before a call
    "finish": PatchPoint("torch._inductor.output_code:CompiledFxGraph", "post_compile"),
}
"""Where emulation intercepts what Inductor compiles and loads, whichever backend called it."""


def missing_points() -> list[str]:
    """Return the points that the installed torch lacks, as ``holder.attribute``; none if it is supported."""
    return [name for points in (DEVICE_POINTS, PROGRAM_POINTS, OUTPUT_POINTS) for name in missing(points)]


@functools.cache
def _device_caches() -> tuple[Callable[[], None], ...]:
    """Return the functions that clear cached answers about devices, as they are before any is replaced.

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
    """Make generated wrappers enter no device, set none and fetch no stream (2.11 to 2.15)."""
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


#: The patterns of Inductor's passes, of which a compile imports one after the other.
_PATTERNS = "torch._inductor.fx_passes.serialized_patterns"

#: What the smallest program imports that Inductor compiles on a CPU.
_MODULES = (
    "sympy.physics",
    "sympy.tensor.tensor",
    "torch",
    "torch._dynamo",
    "torch._dynamo.dce_extra_outputs",
    "torch._dynamo.repro.after_dynamo",
    "torch._functorch._activation_checkpointing.remat_using_tags_for_fwd_loss_bwd_graph_pass",
    "torch._functorch._aot_autograd.subclass_codegen",
    "torch._higher_order_ops.passes.inline_invoke_subgraph",
    "torch._inductor.bounds",
    "torch._inductor.choices",
    "torch._inductor.codegen.memory_planning",
    "torch._inductor.codegen.segmented_tree",
    "torch._inductor.compile_fx",
    "torch._inductor.compiler_bisector",
    "torch._inductor.extern_node_serializer",
    "torch._inductor.fx_passes.apply_gumbel_max_trick",
    "torch._inductor.fx_passes.efficient_conv_bn_eval",
    "torch._inductor.fx_passes.fuse_attention",
    "torch._inductor.fx_passes.mkldnn_fusion",
    "torch._inductor.fx_passes.pad_mm",
    "torch._inductor.fx_passes.quantization",
    "torch._inductor.hooks",
    "torch._inductor.kernel_template_choice",
    "torch._inductor.runtime.caching",
    "torch._subclasses.schema_check_mode",
    "torch.distributed.tensor.experimental",
    "torch.export._trace",
    "torch.fx.experimental.validator",
    "torch.utils.cpp_extension",
)


def import_all() -> None:
    """Import the modules, register backends, and compute what every key of a cache holds (half a second each)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patterns = (one.name for one in pkgutil.iter_modules(private_module(_PATTERNS).__path__, f"{_PATTERNS}."))
        for name in (*_MODULES, *patterns):
            with contextlib.suppress(ModuleNotFoundError):  # another torch: its processes import what they need
                importlib.import_module(name)
    symbol("torch._dynamo", "list_backends")()
    symbol("torch._inductor.codegen.common", "init_backend_registration")()
    symbol("torch._inductor.codegen.common", "get_device_op_overrides")("cpu")
    if symbol("torch._inductor.runtime.triton_compat", "HAS_TRITON"):
        code_keys()
    else:
        torch_code_key()


def prepare_for_cpu() -> None:
    """Make the patterns of Inductor's passes, half a second; for processes that compile for nothing but the CPU."""
    symbol("torch._inductor.fx_passes.joint_graph", "lazy_init")(torch.device("cpu"))
    symbol("torch._inductor.fx_passes.post_grad", "lazy_init")()
