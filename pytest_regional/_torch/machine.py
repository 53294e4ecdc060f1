"""What Inductor generates code with and for: C++ compiler, vector instructions, cache folder."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from pytest_regional._torch import symbol


def cpp_compiler() -> tuple[str, str]:
    """Return path and version text of Inductor's C++ compiler, two empty strings where there is none.

    ``torch._inductor.cpp_builder.get_cpp_compiler`` and ``get_compiler_version_info`` (2.11 to 2.15): PyTorch keeps
    both answers for the process, and needs them itself, so that asking adds no run of the compiler.
    """
    missing: type[Exception] = symbol("torch._inductor.exc", "InvalidCxxCompiler")
    try:
        compiler: str = symbol("torch._inductor.cpp_builder", "get_cpp_compiler")()
    except missing:
        return "", ""
    return compiler, symbol("torch._inductor.cpp_builder", "get_compiler_version_info")(compiler)


def vector_instructions() -> tuple[str, ...]:
    """Return the vector instruction sets that Inductor may choose from on this processor.

    ``torch._inductor.cpu_vec_isa`` (2.11 to 2.15). Not ``pick_vec_isa``, which on x86 compiles a program for each
    (seconds in a fresh cache folder): its choice follows from these, the compiler's version, and ``simdlen``, which is
    Inductor configuration.
    """
    if platform.machine() in ("x86_64", "AMD64"):
        return tuple(symbol("torch._inductor.cpu_vec_isa", "x86_isa_checker")())
    return tuple(str(isa) for isa in symbol("torch._inductor.cpu_vec_isa", "valid_vec_isa_list")())


def inductor_cache_dir() -> Path:
    """Return the folder of Inductor's caches as it is now, made if need be.

    ``torch._inductor.runtime.cache_dir_utils.cache_dir`` (2.11 to 2.15); it follows ``TORCHINDUCTOR_CACHE_DIR``.
    """
    return Path(symbol("torch._inductor.runtime.cache_dir_utils", "cache_dir")())


def cpu_capability_override() -> str:
    """Return ``ATEN_CPU_CAPABILITY``, with which Inductor overrides what the processor can do (2.11 to 2.15)."""
    return os.environ.get("ATEN_CPU_CAPABILITY", "")
