"""PyTorch's state for the whole process (flags, hooks, logs), and what is registered for operators not torch's own.

Checked with torch 2.13 and 2.14.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import hashlib
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pytest_regional._torch import calling, fetching, symbol
from pytest_regional._torch.config import inductor_config
from pytest_regional._torch.cpp import torch_headers
from pytest_regional._torch.operators import is_op_overload, is_op_packet

#: Dynamo's backends by name; for a backend of a package the value is its entry point.
_registered_backends = fetching("torch._dynamo.backends.registry", "_BACKENDS")
_log_state = fetching("torch._logging._internal", "log_state")
#: Returns what is registered for ``namespace::name.overload``, as text (2.11 to 2.15).
_dump = calling("torch._C", "_dispatch_dump")


@contextlib.contextmanager
def structured_trace_off() -> Iterator[None]:
    """Keep pytest from switching PyTorch's structured trace on.

    The logger ``torch.__trace`` (2.11 to 2.15) does not propagate and is on whenever it has a handler. pytest 9.2 adds
    its capture handler to every logger that does not propagate, so reports contained every graph of every compile.
    Meanwhile it has no handler, unless ``TORCH_TRACE`` is set or :func:`structured_trace_to` keeps the trace. Remove
    this when PyTorch distinguishes handlers.
    """
    logger = logging.getLogger("torch.__trace")
    if os.environ.get("TORCH_TRACE") or any(isinstance(handler, _Tracing) for handler in logger.handlers):
        yield
        return
    propagate, handlers = logger.propagate, list(logger.handlers)
    # pytest's session-long handlers exist already; each phase adds handlers to loggers that do not propagate.
    logger.propagate, logger.handlers = True, []
    try:
        yield
    finally:
        # pytest's handlers stay off: the phase they were made for may be over.
        logger.propagate = propagate
        logger.handlers = [handler for handler in handlers if not type(handler).__module__.startswith("_pytest")]


class _Tracing(logging.NullHandler):
    """Stands on the trace's logger while the trace goes to a file: PyTorch asks whether there is a handler."""


@contextlib.contextmanager
def structured_trace_to(folder: Path) -> Iterator[None]:
    """Write PyTorch's structured trace into a file in ``folder``, as ``TORCH_TRACE`` would, and into no log.

    PyTorch reads that variable once, when it is imported. The trace is written where its logger has a handler; a filter
    takes the records before they reach one, or pytest's capture, and refuses them. The directory is made with the first
    record. With ``TORCH_TRACE`` set PyTorch's own file gets the records as well. Read in torch 2.11 to 2.15.
    """
    handler = symbol("torch._logging._internal", "LazyTraceHandler")(str(folder))
    handler.setFormatter(symbol("torch._logging._internal", "TorchLogsFormatter")(trace=True))
    logger = logging.getLogger("torch.__trace")
    whole = bool(os.environ.get("TORCH_TRACE"))

    def taken(record: logging.LogRecord) -> bool:
        handler.handle(record)
        return whole

    with structured_trace_off():
        tracing = _Tracing()
        logger.addFilter(taken)
        logger.addHandler(tracing)
        try:
            yield
        finally:
            logger.removeHandler(tracing)
            logger.removeFilter(taken)
            handler.close()


#: Flags of backends: the functions of ``torch._C`` that read and write each.
BACKEND_FLAGS = {
    "cudnn.enabled": ("_get_cudnn_enabled", "_set_cudnn_enabled"),
    "cudnn.benchmark": ("_get_cudnn_benchmark", "_set_cudnn_benchmark"),
    "cudnn.deterministic": ("_get_cudnn_deterministic", "_set_cudnn_deterministic"),
    "mkldnn.enabled": ("_get_mkldnn_enabled", "_set_mkldnn_enabled"),
    "mkldnn.deterministic": ("_get_mkldnn_deterministic", "_set_mkldnn_deterministic"),
    "nnpack.enabled": ("_get_nnpack_enabled", "_set_nnpack_enabled"),
    "quantized.engine": ("_get_qengine", "_set_qengine"),
    "cuda.flash_sdp": ("_get_flash_sdp_enabled", "_set_sdp_use_flash"),
    "cuda.mem_efficient_sdp": ("_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"),
    "cuda.math_sdp": ("_get_math_sdp_enabled", "_set_sdp_use_math"),
    "cuda.cudnn_sdp": ("_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn"),
    "cuda.sdp_priority": ("_get_sdp_priority_order", "_set_sdp_priority_order"),
    "cuda.fp16_bf16_reduction_math_sdp": (
        "_get_math_sdp_allow_fp16_bf16_reduction",
        "_set_math_sdp_allow_fp16_bf16_reduction",
    ),
    "cuda.preferred_linalg_library": ("_get_linalg_preferred_backend", "_set_linalg_preferred_backend"),
}

#: Module variables that functions and contexts of PyTorch set.
VARIABLES = {
    "torch.__future__": ("_overwrite_module_params_on_conversion", "_swap_module_params_on_conversion"),
    "torch._tensor_str": ("PRINT_OPTS",),
    "torch.backends": ("__allow_nonbracketed_mutation_flag",),
    "torch.backends.opt_einsum": ("enabled", "strategy"),
    "torch.fx.traceback": ("current_replay_node", "should_preserve_node_meta", "_should_preserve_node_meta"),
    "torch.hub": ("_hub_dir",),
    "torch.nn.modules.module": ("_global_is_full_backward_hook",),
    "torch.nn.utils.parametrize": ("_cache_enabled",),
    "torch.utils._device": ("CURRENT_DEVICE",),
    "torch.utils._python_dispatch": (
        "_is_in_torch_dispatch_mode",
        "_is_in_non_infra_torch_dispatch_mode",
        "_is_in_any_mode_without_ignore_compile_internals",
    ),
    "torch._weights_only_unpickler": ("_marked_safe_globals_set",),
}

#: Hooks for all modules, all optimizers, all compiles: a dictionary each. Their entries are a test's.
HOOKS = {
    "torch.nn.modules.module": (
        "_global_buffer_registration_hooks",
        "_global_module_registration_hooks",
        "_global_parameter_registration_hooks",
        "_global_backward_pre_hooks",
        "_global_backward_hooks",
        "_global_forward_pre_hooks",
        "_global_forward_hooks",
        "_global_forward_hooks_always_called",
        "_global_forward_hooks_with_kwargs",
    ),
    "torch.nn.utils.parametrize": ("_cache",),
    "torch.optim.optimizer": ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"),
    "torch._dynamo.convert_frame": ("_bytecode_hooks",),
}

#: Dictionaries that imports and lookups fill as well: only added entries with a test's own code are a test's.
REGISTRIES = {
    "torch._inductor.lowering": ("lowerings", "user_lowerings", "_maybe_layout_constraints"),
    "torch._inductor.decomposition": ("decompositions",),
    "torch._dynamo.backends.registry": ("_COMPILER_FNS",),
    "torch.utils._pytree": ("SUPPORTED_NODES", "SUPPORTED_SERIALIZED_TYPES", "SERIALIZED_TYPE_TO_PYTHON_TYPE"),
}

#: Modules and classes whose functions tests replace; a class follows its module after a colon.
PATCHED_HOLDERS = (
    "torch",
    "torch:Tensor",
    "torch.nn",
    "torch.nn:Module",
    "torch.nn:Linear",
    "torch.nn.functional",
    "torch.autograd",
    "torch.autograd:Function",
    "torch.compiler",
    "torch.fx:Graph",
    "torch.fx:GraphModule",
    "torch.fx:Interpreter",
    "torch.fx:Node",
    "torch.fx.traceback",
    "torch.linalg",
    "torch.optim:Optimizer",
    "torch.random",
    "torch.testing",
    "torch._dynamo",
    "torch._dynamo.convert_frame",
    "torch._dynamo.eval_frame",
    "torch._dynamo.output_graph:OutputGraph",
    "torch._functorch.aot_autograd",
    "torch._functorch._aot_autograd.autograd_cache:AOTAutogradCache",
    "torch._inductor",
    "torch._inductor.codecache:FxGraphCache",
    "torch._inductor.codecache:PyCodeCache",
    "torch._inductor.compile_fx",
    "torch._inductor.graph:GraphLowering",
    "torch._inductor.scheduler:Scheduler",
)


#: What only passes calls on, or raises what a caller found (``module:function``): errors originate elsewhere.
DISPATCHERS = (
    "torch._ops",
    "torch.fx.interpreter",
    "torch.fx.graph_module",
    "torch.fx._lazy_graph_module",
    "torch.nn.modules.module",
    "torch.utils._",
    "torch._dynamo.eval_frame",
    "torch._dynamo.utils",
    "torch._subclasses",
    "torch._compile",
    "torch._jit_internal",
    "torch:_check",
)

#: What raises all sorts of errors, of user code as well, with what was met in the message.
REPORTERS = ("torch._dynamo.exc:", "torch.fx.experimental.proxy_tensor:proxy_call")

#: Packages whose objects are part of the machinery around a program, never of its state.
MACHINERY = (
    *("torch._C", "torch._dynamo", "torch._functorch", "torch._inductor", "torch._ops", "torch._subclasses"),
    *("torch.distributed", "torch.export", "torch.fx", "torch.utils._python_dispatch"),
)


#: Functions in which Dynamo compiles, as prefixes of ``module:function`` (2.11 to 2.15).
COMPILING = ("torch._dynamo.convert_frame:", "torch._dynamo.output_graph:")

#: The module in which Dynamo wraps compiled functions (2.11 to 2.15).
DYNAMO_WRAPPER = "torch._dynamo.eval_frame"

#: Prefixes of Dynamo's module names.
DYNAMO_MODULES = "torch._dynamo."


def loaded(address: str) -> Any:
    """Return the module, or the class after its colon, at ``address``; ``None`` if not imported."""
    name, _, inside = address.partition(":")
    module = sys.modules.get(name)
    return getattr(module, inside, None) if inside else module


@functools.cache
def _flags() -> dict[str, tuple[Any, Any]]:
    """Return the functions that read and write each flag, without those that this torch lacks."""
    pairs = {name: [getattr(torch._C, each, None) for each in pair] for name, pair in BACKEND_FLAGS.items()}
    mha = torch.backends.mha
    return {
        **{name: (read, write) for name, (read, write) in pairs.items() if read and write},
        "mha.fastpath": (mha.get_fastpath_enabled, mha.set_fastpath_enabled),
    }


def backend_flags() -> dict[str, Any]:
    """Return the flags of ``torch.backends`` by name."""
    return {name: read() for name, (read, _) in _flags().items()}


def set_backend_flag(name: str, value: Any) -> None:
    """Restore one of :func:`backend_flags`."""
    _flags()[name][1](value)


def variables() -> dict[str, Any]:
    """Return the :data:`VARIABLES` of loaded modules, without those that this torch lacks."""
    values: dict[str, Any] = {}
    for name, attributes in VARIABLES.items():
        module = sys.modules.get(name)
        for attribute in attributes:
            value = getattr(module, attribute, values)
            if value is not values:
                values[f"{name}.{attribute}"] = copy.copy(value)
    return values


def set_variable(name: str, value: Any) -> None:
    """Restore one of :func:`variables`."""
    module, _, attribute = name.rpartition(".")
    setattr(sys.modules[module], attribute, value)


def dictionaries(named: Mapping[str, tuple[str, ...]]) -> dict[str, dict[Any, Any]]:
    """Return the dictionaries (not copies) of loaded modules that ``named`` names, by their full names."""
    found = {}
    for name, attributes in named.items():
        module = sys.modules.get(name)
        for attribute in attributes:
            value = getattr(module, attribute, None)
            if isinstance(value, dict):
                found[f"{name}.{attribute}"] = value
    return found


def decomposition_tables() -> dict[str, dict[Any, Any]]:
    """Return AOTAutograd's decomposition tables, not copies."""
    tables: dict[str, dict[Any, Any]] = symbol("torch._decomp", "global_decomposition_table")
    return {f"torch._decomp.global_decomposition_table[{name!r}]": table for name, table in tables.items()}


def is_an_entry_point(backend: Any) -> bool:
    """Say whether a Dynamo backend is an entry point of a package, loaded at its first lookup."""
    return _registered_backends().get(backend) is not None


def unregister_backend(name: Any) -> None:
    """Remove a backend that was registered by name from Dynamo's list."""
    _registered_backends().pop(name, None)


#: Sets of functions by ``id``, created at first use.
_ID_SETS = (
    "_allowed_callable_ids",
    "_disallowed_callable_ids",
    "_nonstrict_trace_callable_ids",
    "_leaf_function_ids",
)


def function_ids() -> dict[str, set[int]]:
    """Return the functions that Dynamo allows or disallows in graphs: the sets, not copies, if created."""
    module = sys.modules.get("torch._dynamo.trace_rules")
    found = {}
    for name in _ID_SETS:
        ids = getattr(getattr(module, name, None), "function_ids", None)
        if ids is not None:
            found[f"torch._dynamo.trace_rules.{name}"] = ids
    return found


def patterns() -> Iterator[tuple[str, Any]]:
    """Return Inductor's pattern matcher passes by name; each has a dictionary ``patterns`` of lists of patterns."""
    for module, attribute in (
        ("torch._inductor.fx_passes.joint_graph", "early_patterns"),
        ("torch._inductor.fx_passes.joint_graph", "pass_patterns"),
        ("torch._inductor.fx_passes.post_grad", "pass_patterns"),
        ("torch._inductor.fx_passes.freezing_patterns", "pass_patterns"),
    ):
        passes = getattr(sys.modules.get(module), attribute, ())
        for number, each in enumerate(passes if isinstance(passes, list) else (passes,) if passes else ()):
            yield f"{module}.{attribute}[{number}]", each.patterns


def kernels_of_operators() -> frozenset[str]:
    """Return the kernels that Python registered, as ``torch.library`` names them: ``aten/sin.default/CPU``."""
    return frozenset(symbol("torch.library", "_impls"))


def operators_of_python() -> frozenset[str]:
    """Return the operators that Python defined, as ``torch.library`` names them: ``mine::op``."""
    return frozenset(symbol("torch.library", "_defs"))


def remove_kernels(names: frozenset[str]) -> None:
    """Destroy the libraries that registered one of the kernels ``names``, which restores the replaced kernels."""
    library = symbol("torch.library", "Library")
    for each in gc.get_objects():
        if type(each) is library and not names.isdisjoint(each._op_impls):
            each._destroy()


def log_state() -> tuple[dict[str, Any], set[str]]:
    """Return the logs and artifacts chosen with ``torch._logging.set_logs``."""
    state = _log_state()
    return dict(state.log_qname_to_level), set(state.artifact_names)


def set_log_state(chosen: tuple[dict[str, Any], set[str]]) -> None:
    """Restore the result of :func:`log_state`."""
    state = _log_state()
    state.log_qname_to_level, state.artifact_names = dict(chosen[0]), set(chosen[1])


@functools.cache
def torch_folder() -> str:
    """Return the directory of the installed torch, with a separator at its end."""
    return str(torch_headers().parent) + "/"


def is_torchs_file(file: str) -> bool:
    """Return whether ``file`` registers for torch itself; ``torch.library`` registers for its callers."""
    inside = file.removeprefix(torch_folder()) if file.startswith(torch_folder()) else ""
    return bool(inside) and inside != "library.py" and not inside.startswith("_library/")


@dataclass(frozen=True)
class Kernel:
    """A kernel of an operator: its dispatch key, the file that registered it, and whether another one replaced it."""

    key: str
    file: str
    replaced: bool

    @property
    def is_python(self) -> bool:
        """Whether it is a Python function."""
        return self.file.endswith(".py")


_KERNEL = re.compile(r"^(\w+)(?:\[alias\])?( \(inactive\))?: registered at (.*):\d+ ::", re.MULTILINE)


def kernels_of(name: str) -> list[Kernel]:
    """Return the kernels of the operator ``namespace::name.overload``."""
    return [Kernel(key, file, bool(replaced)) for key, replaced, file in _KERNEL.findall(_dump(name))]


def is_torchs_kernel(entry: str) -> bool:
    """Return whether torch itself registered ``aten/addr/FuncTorchBatched``: it does so at the first ``vmap``."""
    operator, _, key = entry.rpartition("/")
    kernels = kernels_of(operator.replace("/", "::"))
    return any(each.key == key and not each.replaced and is_torchs_file(each.file) for each in kernels)


_torchs: set[str] = set()


def is_torchs_operator(name: str) -> bool:
    """Return whether torch itself defines the schema of an operator, whatever its namespace is."""
    if name not in _torchs:
        file, custom = _defined_in(name), custom_operator(name)
        made_here = custom is not None and is_torchs_file(custom._init_fn.__code__.co_filename)
        if not (made_here or is_torchs_file(file) or file.startswith(_built_in())):
            return False
        _torchs.add(name)
    return True


def _defined_in(name: str) -> str:
    found = re.search(r"^debug: registered at (.*):\d+$", _dump(name), re.MULTILINE)
    return found[1] if found else "unknown"


@functools.cache
def _built_in() -> str:
    """Return the directory in which torch was built."""
    return _defined_in("aten::mm").partition("build/aten/")[0]


def overloads_of(target: Any) -> list[Any]:
    """Return an operator's overloads, for one of them itself, for anything else none (2.11 to 2.15)."""
    if is_op_overload(target):
        return [target]
    return [getattr(target, name) for name in target.overloads()] if is_op_packet(target) else []


#: Keys of kernels that run below tracing, and so when a compiled program runs.
_BACKENDS = (
    "CPU",
    "CUDA",
    "HIP",
    "XPU",
    "MPS",
    "Meta",
    "Sparse",
    "Quantized",
    "Mkldnn",
    "Nested",
    "PrivateUse1",
    "Lazy",
)


def runs_while_traced(key: str) -> bool:
    """Return whether a kernel for ``key`` runs while a program is traced, so that the trace has what it does."""
    return not key.startswith((*_BACKENDS, "CompositeExplicitAutograd", "BackendSelect"))


def replaced_kernels() -> Iterator[tuple[str, Kernel]]:
    """Yield ATen's operators for which somebody else registered a kernel in Python that tracing calls."""
    global _known
    impls = kernels_of_operators()
    found: set[str] = set()
    for entry in impls - _known:
        namespace, name, key = entry.split("/")
        operator = f"{namespace}::{name}"
        if namespace == "aten" and runs_while_traced(key) and is_torchs_operator(operator):
            kernels = [each for each in kernels_of(operator) if each.is_python and runs_while_traced(each.key)]
            foreign = [(operator, each) for each in kernels if not is_torchs_file(each.file)]
            yield from foreign
            found |= {entry} if foreign else set()
    _known |= impls - found


_known: frozenset[str] = frozenset()


def custom_operator(name: str) -> Any:
    """Return the ``CustomOpDef`` that ``torch.library.custom_op`` made of an operator, or None (2.11 to 2.15)."""
    return symbol("torch._library.custom_ops", "OPDEFS").get(name)


def is_custom_operator(value: Any) -> bool:
    """Return whether ``value`` is what ``torch.library.custom_op`` returns (2.11 to 2.15)."""
    return isinstance(value, symbol("torch._library.custom_ops", "CustomOpDef"))


def overload_of(definition: Any) -> Any:
    """Return the overload that a ``CustomOpDef`` defines (2.11 to 2.15)."""
    return definition._opoverload


#: What a ``CustomOpDef`` calls while a program is traced (2.11 to 2.15); its kernels run later.
_TRACED = ("_abstract_fn", "_setup_context_fn", "_backward_fn", "_torch_dispatch_fns", "_vmap_fn", "_autocast_dtype")


def traced_parts(definition: Any) -> dict[str, Any]:
    """Return the functions of a ``CustomOpDef`` that tracing calls, by their names there."""
    return {name: getattr(definition, name, None) for name in _TRACED}


def registered_beside(name: str) -> dict[str, Any]:
    """Return what ``torch.library`` keeps of an operator besides kernels (``simple_registry``, 2.11 to 2.15)."""
    entry = symbol("torch._library.simple_registry", "singleton").get(name)
    if entry is None:
        return {}
    fake = entry.fake_impl.kernels[-1].func if entry.fake_impl.kernels else None
    return {"fake": fake, "dispatch rules": dict(entry.torch_dispatch_rules._data)}


def derivative_of(op: Any) -> tuple[Any, Any] | None:
    """Return forward and backward of an overload's last ``register_autograd``, or None (2.11 to 2.15).

    PyTorch makes a class of each derivative, which only the dispatcher refers to.
    """
    name = f"GeneratedBackwardFor_{op._namespace}_{op._opname}_{op._overloadname}"
    made = [each for each in symbol("torch.autograd", "Function").__subclasses__() if each.__name__ == name]
    return (made[-1].forward, made[-1].backward) if made else None


def python_kernels(op: Any) -> Mapping[Any, Any]:
    """Return the functions registered with ``py_impl``: ``OperatorBase.py_kernels`` (2.11 to 2.15)."""
    return op.py_kernels


def tags_of(op: Any) -> list[str]:
    """Return the tags of an overload, as text (2.11 to 2.15)."""
    return sorted(map(str, op.tags))


@functools.cache
def _digest(path: str, size: int, changed: int) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def loaded_libraries() -> list[str]:
    """Return digests of the libraries that ``torch.ops.load_library`` loaded."""
    found = [(path, Path(path).stat()) for path in sorted(torch.ops.loaded_libraries)]
    return [_digest(path, stat.st_size, stat.st_mtime_ns) for path, stat in found]


def foreign_decompositions() -> dict[str, Any]:
    """Return the decompositions that Inductor uses and that are not torch's, by operator.

    ``torch._inductor.decomposition`` (2.11 to 2.15), which no one has changed before its import. Inductor
    copies its table when it first compiles; what is put into the table afterwards is not used.
    """
    module = sys.modules.get("torch._inductor.decomposition")
    if module is None:
        return {}
    copied = getattr(module, "fast_random_decomps", None)
    info = getattr(copied, "cache_info", None)
    is_used = info is not None and info().currsize and not inductor_config().fallback_random
    table = copied() if copied is not None and is_used else module.decompositions
    return {str(op): function for op, function in table.items() if not _is_torchs_function(function)}


@functools.lru_cache(maxsize=8192)
def _is_torchs_function(function: Any) -> bool:
    function = getattr(function, "func", function)  # of a partial
    code = getattr(function, "__code__", None)
    if code is None:
        return str(getattr(function, "__module__", None) or type(function).__module__).partition(".")[0] == "torch"
    return bool(code.co_filename.startswith(torch_folder()))
