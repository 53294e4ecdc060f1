"""Compiled kernels by what they are made from, shared by tests, workers and runs.

Every test begins with empty graph caches, so that its counters say what its own program did. What takes most of its
time is no graph but the C++ compiler, and what that makes of one source, with one command, on one machine, is always
the same. It is kept here: a *kernel* is what one run of the compiler leaves. No counter of the harness looks at those.

``commands`` says what a kernel depends on, ``files`` keeps them, ``triton_binaries`` does the same for Triton's, and
``places`` where the store is. ``PYTEST_REGIONAL_KERNEL_STORE`` (a folder, or ``off``) says so to every process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from pytest_regional._torch import cpp_compile

from .commands import Command
from .files import KernelFiles
from .places import VARIABLE, chosen_folder

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
    if place is None:
        yield None
        return
    files = KernelFiles(place)

    def run(original: cpp_compile.Run, line: str, working_folder: str) -> None:
        command = Command.of(line)
        if command is None:
            original(line, working_folder)
            return
        key = command.key()
        if files.take(key, command.target):
            return
        original(line, working_folder)
        files.put(key, command.target)

    with cpp_compile.compiling_with(run), _triton_manager():
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


__all__ = ["VARIABLE", "KernelFiles", "kernels_kept"]
