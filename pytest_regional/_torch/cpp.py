"""The C++ compiler: its runs, the processor, precompiled headers."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pytest_regional._torch import symbol
from pytest_regional._torch.patching import PatchPoint, patched, wrapped


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


def described_processor() -> tuple[str, ...]:
    """Return what Linux says of the first processor, line by line; all of a machine are taken for equal.

    Empty where there is no ``/proc/cpuinfo``.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    return tuple(lines[: lines.index("")] if "" in lines else lines)


def cpu_capability_override() -> str:
    """Return ``ATEN_CPU_CAPABILITY``, with which Inductor overrides what the processor can do (2.11 to 2.15)."""
    return os.environ.get("ATEN_CPU_CAPABILITY", "")


#: Runs one command line in a folder, and returns when what it makes is there. It raises what the compiler says.
Run = Callable[[str, str], None]

_COMPILER = {
    # Called with the command line and the folder to run it in, by `run_compile_cmd`, through which all compiles of
    # kernels, wrappers and headers go (2.11 to 2.15). What times a compile, in that function, stays in effect.
    "run": PatchPoint("torch._inductor.cpp_builder", "_run_compile_cmd"),
}


def compiling_with(run: Callable[[Run, str, str], None]) -> contextlib.AbstractContextManager[None]:
    """Have ``run(original, command, folder)`` called for each run of the compiler, in this process."""
    return wrapped(_COMPILER, {"run": lambda original, *args, **kwargs: run(original, *args, **kwargs)})


def torch_headers() -> Path:
    """Return the folder of PyTorch's own headers, which generated code includes."""
    return Path(os.path.dirname(symbol("torch", "__file__")), "include")


# Returns the path of a header beside which its translation is, made if it is missing; remembers that for its arguments
# as long as the process lives (2.11 to 2.15).
_HEADER = {"header": PatchPoint("torch._inductor.codecache", "_precompile_header")}
# Looked up at each call (2.11 to 2.15).
_FOLDERS = {
    "headers": PatchPoint("torch._inductor.codecache", "_HEADER_DIR"),
    "locks": PatchPoint("torch._inductor.codecache", "_HEADER_LOCK_DIR"),
}

_ENDINGS = (".gch", ".pch")  # GCC's, Clang's


def default_headers_folder() -> Path:
    """Return PyTorch's cache folder for a user who names none, where it keeps these headers (2.11 to 2.15).

    It is in the system's folder for temporary files and has the user's name, so anybody can have made it first.
    """
    return Path(_FOLDERS["headers"].current()).parent


def default_headers_folder_of_others() -> Path:
    """Return that of a process without :func:`headers_kept_in`, whatever this one has (2.11 to 2.15)."""
    return Path(symbol("torch._inductor.runtime.runtime_utils", "default_cache_dir")())


#: Has a process of torch's compile without precompiled headers (2.11 to 2.15).
NO_HEADERS = {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}


@contextlib.contextmanager
def headers_kept_in(folder: Path) -> Iterator[None]:
    """Have Inductor keep its precompiled headers in ``folder``, and take them from there."""
    paths = _paths(folder)

    def header(original: Callable[..., str], *args: Any, **kwargs: Any) -> str:
        asked = (args, tuple(sorted(kwargs.items())))
        if asked not in paths or not _translations(paths[asked]):
            # Without what it remembers, which may be of another folder.
            paths[asked] = getattr(original, "__wrapped__", original)(*args, **kwargs)
            for path in _translations(paths[asked]):
                os.utime(path)  # which ones are used decides which ones are kept
        return paths[asked]

    folders = {"headers": lambda _: str(folder), "locks": lambda _: str(folder / "locks")}
    with patched(_FOLDERS, folders), wrapped(_HEADER, {"header": header}):
        yield


@contextlib.contextmanager
def no_headers() -> Iterator[None]:
    """Have Inductor compile without precompiled headers, which takes three times as long; no cache key changes."""
    with wrapped(_HEADER, {"header": lambda *_args, **_kwargs: None}):
        yield


@functools.cache
def _paths(folder: Path) -> dict[Any, str]:
    """Return the headers that this process has asked for, by what it asked: to ask takes a run of the preprocessor."""
    return {}


def _translations(header: str) -> list[str]:
    return [header + ending for ending in _ENDINGS if os.path.exists(header + ending)]


_PROCESSOR_CHECK = {
    # Builds a library with vector instructions, unless it is there, and loads it in another process.
    "check": PatchPoint("torch._inductor.cpu_vec_isa:VecISA", "check_build"),
    # Both are imported by the check each time it runs.
    "write": PatchPoint("torch._inductor.codecache", "write"),
    "locks": PatchPoint("torch._inductor.codecache", "get_lock_dir"),
}


@contextlib.contextmanager
def processor_checked_in(folder: Path) -> Iterator[None]:
    """Have Inductor keep in ``folder`` what it builds to check the processor, and load it from there.

    It keeps it in the cache folder (2.11 to 2.15), so every process that begins with an empty one builds it again: as
    long as four kernels take. Its name holds a digest of compiler, flags and version of torch. What is generated
    later, and all that caches look up, stays where it was.
    """
    checking = threading.local()

    def check(original: Callable[..., bool], *args: Any) -> bool:
        checking.folder = str(folder)
        try:
            return original(*args)
        finally:
            checking.folder = None

    def write(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        chosen = getattr(checking, "folder", None)
        return original(*args, **kwargs) if chosen is None else original(*args, **{"specified_dir": chosen, **kwargs})

    def locks(original: Callable[[], str]) -> str:
        chosen = getattr(checking, "folder", None)
        if chosen is None:
            return original()
        os.makedirs(os.path.join(chosen, "locks"), mode=0o700, exist_ok=True)
        return os.path.join(chosen, "locks")

    with wrapped(_PROCESSOR_CHECK, {"check": check, "write": write, "locks": locks}):
        yield
