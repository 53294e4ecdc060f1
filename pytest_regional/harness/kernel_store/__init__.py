"""Compiled kernels by what they are made from, shared by tests, workers and runs.

Every test begins with empty graph caches, so that its counters say what its own program did. What takes most of its
time is no graph but the C++ compiler, and what that makes of one source, with one command, on one machine, is always
the same. It is kept here: a *kernel* is what one run of the compiler leaves. No counter of the harness looks at those.

``commands`` says what a kernel depends on (``compilers``: of the compiler itself), ``files`` keeps them,
``triton_binaries`` does the same for Triton's, and ``places`` where the store is. ``PYTEST_REGIONAL_KERNEL_STORE`` (a
folder, or ``off``) says so to every process. Precompiled headers and checks of the processor, for which Inductor looks
in its own directory, stay there if no other user can have written to it, and are in the store otherwise.

What is here is code: it is trusted as far as this user and root are, and what anybody else can have written is not
used. ``pytest_regional._private_folders`` says how that is told.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from pytest_regional._torch import cpp
from pytest_regional._torch.cpp import processor_checked_in
from pytest_regional.harness.kernel_store.commands import Command, run_whole
from pytest_regional.harness.kernel_store.files import (
    HEADERS,
    PROCESSOR,
    VARIABLE,
    KernelFiles,
    KernelStoreWarning,
    chosen_folder,
    folder_for_compilers,
)

# Named, not imported: most tests never load Triton.
_TRITON_VARIABLE, _TRITON_MANAGER = "TRITON_CACHE_MANAGER", f"{__name__}.triton_binaries:StoredBinaries"


@contextlib.contextmanager
def kernels_kept(folder: Path | None = None) -> Iterator[KernelFiles | None]:
    """Have the C++ compiler asked only for what no process of this machine has asked it for before.

    Args:
        folder: the store; by default the one that the environment names.

    Yields:
        The files, or ``None`` where there is no store.
    """
    place = folder or chosen_folder()
    with _shared_by_tests(place):
        if place is None:
            yield None
            return
        with _kept_in(KernelFiles(place)) as files:
            yield files


@contextlib.contextmanager
def _shared_by_tests(store: Path | None) -> Iterator[None]:
    """Have all tests share what Inductor looks for in a folder: PyTorch's own, if it is private, else the store."""
    bases = [cpp.default_headers_folder(), *([store] if store else [])]
    headers, processor = folder_for_compilers(HEADERS, *bases), folder_for_compilers(PROCESSOR, *bases)
    with contextlib.ExitStack() as stack:
        stack.enter_context(cpp.headers_kept_in(headers) if headers else cpp.no_headers())
        if processor:
            stack.enter_context(processor_checked_in(processor))
        yield


def environment_of_scripts() -> dict[str, str]:
    """Return variables for a process without this harness, in which torch reads no header that others translated."""
    folder = folder_for_compilers(HEADERS, cpp.default_headers_folder_of_others())
    return {} if folder else cpp.NO_HEADERS


@contextlib.contextmanager
def _kept_in(files: KernelFiles) -> Iterator[KernelFiles]:
    def run(original: cpp.Run, line: str, working_folder: str) -> None:
        command = Command.of(line)
        if command is None:
            run_whole(original, line, working_folder)
            return
        key = command.key()
        if files.take(key, command.target):
            return
        original(line, working_folder)
        files.put(key, command.target)

    with cpp.compiling_with(run), _triton_manager():
        yield files


@contextlib.contextmanager
def _triton_manager() -> Iterator[None]:
    """Name ours to Triton, here and in processes that are started inside, unless the user named another."""
    if _TRITON_VARIABLE in os.environ:
        yield
        return
    os.environ[_TRITON_VARIABLE] = _TRITON_MANAGER
    try:
        yield
    finally:
        os.environ.pop(_TRITON_VARIABLE, None)


__all__ = ["VARIABLE", "KernelFiles", "KernelStoreWarning", "environment_of_scripts", "kernels_kept"]
