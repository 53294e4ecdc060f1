"""Compiling a generated Triton kernel for any target: Inductor's ``CachingAutotuner`` and Triton's compiler.

Checked with torch 2.11 (triton 3.6), 2.13 and 2.15 (triton 3.9). None of it needs a GPU.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from typing import Any

from pytest_regional._torch import private_module, symbol


def stand_alone() -> None:
    """Let modules of kernels be imported in a process that never launches one.

    Each calls ``torch._inductor.runtime.triton_helpers.set_driver_to_gpu``, which fails where there is no GPU. For a
    process that does nothing else: it is not put back.
    """
    symbol("torch._inductor.runtime.triton_helpers", "set_driver_to_gpu")
    private_module("torch._inductor.runtime.triton_helpers").set_driver_to_gpu = lambda: None  # type: ignore[attr-defined]
    symbol("torch._inductor.runtime.triton_heuristics", "CachingAutotuner")


def code_keys() -> tuple[str, ...]:
    """Return PyTorch's digests of the code that generates kernels and compiles them: a second, once in a process.

    ``torch._inductor.codecache.torch_key`` (versions and the sources of ``torch._inductor``) and Triton's own, as
    ``torch._inductor.runtime.triton_compat`` has it (2.11 to 2.15). Both are in the key of every cache of Inductor's.
    """
    digest: bytes = symbol("torch._inductor.codecache", "torch_key")()
    return digest.hex(), symbol("torch._inductor.runtime.triton_compat", "triton_key")()


def kernel_in(path: Path, name: str) -> Any:
    """Import the module at ``path`` and return its kernel ``name``: a ``CachingAutotuner``."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def configs_of(tuner: Any) -> list[Any]:
    """Return the configurations that ``tuner`` would try: ``CachingAutotuner.configs``."""
    return list(tuner.configs)


def config_text(config: Any) -> str:
    """Return a ``triton.Config`` in words: block sizes, warps, stages."""
    sizes = ", ".join(f"{name}={value}" for name, value in config.kwargs.items())
    return f"{sizes + ', ' if sizes else ''}num_warps={config.num_warps}, num_stages={config.num_stages}"


def compile_config(tuner: Any, config: Any, backend: str, arch: int | str, warp_size: int) -> Any:
    """Compile ``tuner``'s function as it would itself, but for a target of our choice; returns a ``CompiledKernel``.

    Uses ``CachingAutotuner._create_compile_meta`` and ``_create_compile_options``, ``triton.compiler.ASTSource``,
    ``triton.backends.compiler.GPUTarget`` and ``triton.compile``.
    """
    meta = tuner._create_compile_meta(config)
    options = tuner._create_compile_options(config, meta)
    if backend == "hip":
        options = {name: value for name, value in options.items() if name not in _NVIDIA_OPTIONS}
    source = symbol("triton.compiler", "ASTSource")(tuner.fn, meta["signature"], meta["constants"], meta["configs"][0])
    target = symbol("triton.backends.compiler", "GPUTarget")(backend, arch, warp_size)
    return symbol("triton", "compile")(source, target=target, options=options)


_NVIDIA_OPTIONS = frozenset({"launch_cooperative_grid", "launch_pdl", "enable_reflect_ftz"})


def told_by(error: BaseException, tuner: Any) -> tuple[str, str]:
    """Return what a compiler's error says, and the line of the kernel that it is about where it says that.

    ``triton.compiler.errors.CompilationError`` repeats the source in front of its message, once for every function
    around the place where the error arose, which the innermost cause names.
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
        return ""  # inside a loop Triton names the whole function, whose first line says nothing
    lines = (error.src or tuner.fn.src).splitlines()
    number = getattr(error.node, "lineno", 0)
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""
