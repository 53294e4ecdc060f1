"""The C++ compiler: its runs, the CPU, precompiled headers."""

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
from pytest_regional._torch.patching import AnsweredError, PatchPoint, patched, wrapped


def cpp_compiler() -> tuple[str, str]:
    """Return path and version text of Inductor's C++ compiler, which PyTorch caches, or empty ones (2.11 to 2.15)."""
    missing: type[Exception] = symbol("torch._inductor.exc", "InvalidCxxCompiler")
    try:
        compiler: str = symbol("torch._inductor.cpp_builder", "get_cpp_compiler")()
    except missing:
        return "", ""
    return compiler, symbol("torch._inductor.cpp_builder", "get_compiler_version_info")(compiler)


def vector_instructions() -> tuple[str, ...]:
    """Return the vector instruction sets that Inductor may choose from on this CPU.

    ``torch._inductor.cpu_vec_isa`` (2.11 to 2.15). Not ``pick_vec_isa``, which on x86 compiles a program for each
    (seconds with an empty cache directory): its choice follows from these, the compiler's version, and Inductor's
    setting ``simdlen``.
    """
    if platform.machine() in ("x86_64", "AMD64"):
        return tuple(symbol("torch._inductor.cpu_vec_isa", "x86_isa_checker")())
    return tuple(str(isa) for isa in symbol("torch._inductor.cpu_vec_isa", "valid_vec_isa_list")())


def described_processor() -> tuple[str, ...]:
    """Return Linux's description of the first CPU, line by line, as if all were equal; empty on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    return tuple(lines[: lines.index("")] if "" in lines else lines)


def cpu_capability_override() -> str:
    """Return ``ATEN_CPU_CAPABILITY``, with which Inductor overrides the CPU's capabilities (2.11 to 2.15)."""
    return os.environ.get("ATEN_CPU_CAPABILITY", "")


#: Runs one command line in a directory, and returns when its output exists. It raises the compiler's errors.
Run = Callable[[str, str], None]


def compiling_with(run: Callable[[Run, str, str], None]) -> contextlib.AbstractContextManager[None]:
    """Call ``run(original, command, folder)`` for each run of the compiler in this process.

    ``run_compile_cmd`` calls ``_run_compile_cmd`` with the command line and its working directory for all compiles of
    kernels, wrappers and headers (2.11 to 2.15). That function's timing of compiles stays in effect.
    """
    return wrapped({"run": PatchPoint("torch._inductor.cpp_builder", "_run_compile_cmd")}, {"run": run})


def torch_headers() -> Path:
    """Return the directory of PyTorch's headers, which generated code includes."""
    return Path(os.path.dirname(symbol("torch", "__file__")), "include")


# Returns the path of a header with its translation next to it, made if missing; caches the path by its arguments in
# this process (2.11 to 2.15).
_HEADER = {"header": PatchPoint("torch._inductor.codecache", "_precompile_header")}
# Looked up at each call (2.11 to 2.15).
_FOLDERS = {
    "headers": PatchPoint("torch._inductor.codecache", "_HEADER_DIR"),
    "locks": PatchPoint("torch._inductor.codecache", "_HEADER_LOCK_DIR"),
}


def default_headers_folder() -> Path:
    """Return PyTorch's default cache directory, where it keeps these headers (2.11 to 2.15).

    It is in the system's temporary directory and named after the user, so any user may have created it first.
    """
    return Path(_FOLDERS["headers"].current()).parent


def default_headers_folder_of_others() -> Path:
    """Return that directory for a process without :func:`headers_kept_in` (2.11 to 2.15)."""
    return Path(symbol("torch._inductor.runtime.runtime_utils", "default_cache_dir")())


#: Makes a child process compile without precompiled headers (2.11 to 2.15).
NO_HEADERS = {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}


@contextlib.contextmanager
def headers_kept_in(folder: Path) -> Iterator[None]:
    """Make Inductor keep its precompiled headers in ``folder``."""
    paths = _paths(folder)

    def header(original: Callable[..., str], *args: Any, **kwargs: Any) -> str:
        request = (args, tuple(sorted(kwargs.items())))
        if request not in paths or not _translations(paths[request]):
            # Bypass its cached paths, which may be of another directory.
            paths[request] = getattr(original, "__wrapped__", original)(*args, **kwargs)
            for path in _translations(paths[request]):
                os.utime(path)  # the newest headers are kept
        return paths[request]

    folders = {"headers": lambda _: str(folder), "locks": lambda _: str(folder / "locks")}
    with patched(_FOLDERS, folders), wrapped(_HEADER, {"header": header}):
        yield


def no_headers() -> contextlib.AbstractContextManager[None]:
    """Make Inductor compile without precompiled headers, three times slower; no cache key changes."""
    return wrapped(_HEADER, {"header": lambda *_args, **_kwargs: None})


@functools.cache
def _paths(folder: Path) -> dict[Any, str]:
    """Return the headers this process requested, by request: a request runs the preprocessor."""
    return {}


def _translations(header: str) -> list[str]:
    """Return what GCC, or Clang, made of a header, if it has."""
    return [header + ending for ending in (".gch", ".pch") if os.path.exists(header + ending)]


_PROCESSOR_CHECK = {
    # Builds a library with vector instructions, unless it exists, and loads it in another process.
    "check": PatchPoint("torch._inductor.cpu_vec_isa:VecISA", "check_build"),
    # The check imports both each time it runs.
    "write": PatchPoint("torch._inductor.codecache", "write"),
    "locks": PatchPoint("torch._inductor.codecache", "get_lock_dir"),
}


@contextlib.contextmanager
def processor_checked_in(folder: Path) -> Iterator[None]:
    """Make Inductor keep its CPU check's builds in ``folder``, and load them from there.

    By default they are in the cache directory (2.11 to 2.15), so every process that starts with an empty one builds
    them again: as long as four kernels take. The file name contains a digest of compiler, flags and version of torch.
    A build that could be loaded is not loaded again, by an interpreter each, where the CPU has the same instructions.
    Generated code and all other caches stay where they are.
    """
    checking = threading.local()
    named = [line for line in described_processor() if line.lower().startswith(("flags", "features"))]
    instructions = "\n".join(named).encode()

    def check(original: Callable[..., bool], *args: Any) -> bool:
        checking.folder, checking.loaded = str(folder), None
        try:
            works = original(*args)
        except AnsweredError:
            return True
        finally:
            checking.folder = None
        if works and checking.loaded is not None:
            with contextlib.suppress(OSError):  # the next process loads it, too
                checking.loaded.write_bytes(instructions)
        return works

    def write(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        chosen = getattr(checking, "folder", None)
        if chosen is None:
            return original(*args, **kwargs)
        key, path = original(*args, **{"specified_dir": chosen, **kwargs})
        checking.loaded = Path(f"{path}.loaded")
        with contextlib.suppress(OSError):
            if instructions and checking.loaded.read_bytes() == instructions:
                raise AnsweredError
        return key, path

    def locks(original: Callable[[], str]) -> str:
        chosen = getattr(checking, "folder", None)
        if chosen is None:
            return original()
        os.makedirs(os.path.join(chosen, "locks"), mode=0o700, exist_ok=True)
        return os.path.join(chosen, "locks")

    with wrapped(_PROCESSOR_CHECK, {"check": check, "write": write, "locks": locks}):
        yield
