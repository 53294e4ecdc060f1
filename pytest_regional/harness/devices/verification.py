"""Kernels of an emulated GPU proved for all sizes while a test is checked: ``--regional-verify``."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pytest_regional._errors import RegionalError
from pytest_regional.harness.kernel_store.files import KernelFiles, chosen_folder

if TYPE_CHECKING:
    from pytest_regional.emulation import Emulation
    from pytest_regional.harness.regional import Regional
    from pytest_regional.verify import Verified


class KernelRefutedError(RegionalError, AssertionError):
    """Kernels with a property that does not hold; for each the sizes, and the programs or indices that show it."""


def missing_solver() -> str:
    """Return what to do where z3, or Triton, without which no kernel is verified, is not installed; else empty."""
    for module, command in (("z3", "pip install 'pytest-regional[verify]'"), ("triton", "pip install triton")):
        if importlib.util.find_spec(module) is None:
            return f"needs {module}: {command}"
    return ""


@contextlib.contextmanager
def verifying_kernels(regional: Regional, emulation: Emulation) -> Iterator[None]:
    """Collect the kernels that are compiled inside, where they are to be verified.

    What is found out about a kernel is kept in the kernel store, for all processes.
    """
    if regional.verify_seconds is None:
        yield
        return
    from pytest_regional.verify import verifying

    folder = chosen_folder()
    store = None if folder is None else KernelFiles(folder)
    with verifying(emulation, regional.verify_seconds, store) as regional.verification:
        yield


def check_refuted(kernels: Sequence[Verified]) -> None:
    """Raise if a property of a kernel was refuted.

    Raises:
        KernelRefutedError: naming kernel, property and counterexample.
    """
    lines = [
        f"{_title(kernel)}: {outcome.property}, with {outcome.counterexample or 'any sizes'}: {outcome.reason}"
        for kernel in kernels
        for outcome in kernel.outcomes
        if outcome.verdict == "refuted"
    ]
    if lines:
        raise KernelRefutedError("\n".join(lines))


def _title(kernel: Verified) -> str:
    sizes = ", ".join(f"{name}={value}" for name, value in kernel.config.items())
    return f"{kernel.kernel} ({sizes})" if sizes else kernel.kernel
