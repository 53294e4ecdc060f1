"""A store of compiled kernels, shared by tests, workers and runs.

Every test starts with empty graph caches, so that its counters only count its own program. Most of its time goes to the
C++ compiler, whose output for one source and command on one machine is always the same. It is kept here: a *kernel* is
the output of one run of the compiler. No counter of the harness counts those.

``commands`` makes keys, and stores Triton's kernels too; ``files`` stores kernels and chooses the directory.
``PYTEST_REGIONAL_KERNEL_STORE`` (a directory, or ``off``) configures
every process. Precompiled headers and CPU checks, which Inductor looks up in its own directory, stay there if no other
user can write to it, and otherwise go into the store. What the compiler made of them is kept like a kernel: that
directory is a temporary one, and empty on each new machine of a CI service.

The store contains code: only files that this user or root wrote are used. ``_base.files`` checks that.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from pytest_regional._torch import cpp
from pytest_regional._torch.cpp import processor_checked_in
from pytest_regional.harness.kernel_store.commands import Command, processor, run_whole
from pytest_regional.harness.kernel_store.files import (
    HEADERS,
    PRECOMPILED,
    PROCESSOR,
    VARIABLE,
    KernelFiles,
    KernelStoreWarning,
    chosen_folder,
    folder_for_compilers,
    nothing_read,
    prepared,
)

# Named, not imported: most tests never load Triton.
_TRITON_VARIABLE, _TRITON_MANAGER = "TRITON_CACHE_MANAGER", f"{__name__}.commands:StoredBinaries"


@contextlib.contextmanager
def kernels_kept(folder: Path | None = None) -> Iterator[KernelFiles | None]:
    """Run the C++ compiler only on input that is not in the store of this machine.

    Args:
        folder: the store; by default the one named by the environment.

    Yields:
        The store, or ``None`` without one.
    """
    place = folder or chosen_folder()
    # Inductor's directories are shared between tests: PyTorch's own if it is private, else the store's.
    bases = [cpp.default_headers_folder(), *([place] if place else [])]
    headers, checks = folder_for_compilers(HEADERS, *bases), folder_for_compilers(PROCESSOR, *bases)
    with contextlib.ExitStack() as stack:
        stack.enter_context(cpp.headers_kept_in(headers) if headers else cpp.no_headers())
        if checks:
            stack.enter_context(processor_checked_in(checks))
        yield stack.enter_context(_kept_in(KernelFiles(place))) if place else None


def environment_of_scripts() -> dict[str, str]:
    """Return variables for a process without this harness that disable precompiled headers of other users."""
    folder = folder_for_compilers(HEADERS, cpp.default_headers_folder_of_others())
    return {} if folder else cpp.NO_HEADERS


@contextlib.contextmanager
def _kept_in(files: KernelFiles) -> Iterator[KernelFiles]:
    packing: list[threading.Thread] = []

    def run(original: cpp.Run, line: str, working_folder: str) -> None:
        command = Command.of(line)
        if command is None:
            run_whole(original, line, working_folder)
            return
        key = command.key()
        if files.take(key, command.target):
            return
        with files.claimed(key):
            # Another process may have made it meanwhile.
            if files.take(key, command.target):
                return
            run_whole(original, line, working_folder)
            if command.target.suffix != PRECOMPILED:
                files.put(key, command.target)
                return
        # Packing takes a second, in which the kernel is compiled.
        packing.append(threading.Thread(target=files.put, args=(key, command.target), name="regional-packing"))
        packing[-1].start()

    try:
        with cpp.compiling_with(run), _triton_manager():
            yield files
    finally:
        for thread in packing:
            thread.join()


@contextlib.contextmanager
def _triton_manager() -> Iterator[None]:
    """Make our manager Triton's, here and in processes started inside, unless the user named another."""
    if _TRITON_VARIABLE in os.environ:
        yield
        return
    os.environ[_TRITON_VARIABLE] = _TRITON_MANAGER
    try:
        yield
    finally:
        os.environ.pop(_TRITON_VARIABLE, None)


__all__ = [
    "VARIABLE",
    "Command",
    "KernelFiles",
    "KernelStoreWarning",
    "chosen_folder",
    "environment_of_scripts",
    "kernels_kept",
    "nothing_read",
    "prepared",
    "processor",
]
