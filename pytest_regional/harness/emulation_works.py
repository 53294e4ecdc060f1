"""That the self-test of an emulated GPU passed, kept in the kernel store: no other process need run it.

It takes seconds, and says the same until Python, numpy, torch, triton or this package change.
"""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import version
from pathlib import Path

import pytest_regional
from pytest_regional._torch.triton_compile import code_keys
from pytest_regional.harness.kernel_store.files import KernelFiles
from pytest_regional.harness.kernel_store.places import chosen_folder

_PASSED = b"the self-test of the emulated GPU passed"


def is_known(profile: str) -> bool:
    """Tell whether the self-test of ``profile`` has passed on this machine, with all that it tries as it is now."""
    folder = chosen_folder()
    return folder is not None and KernelFiles(folder).read(_key(profile)) == _PASSED


def remember(profile: str) -> None:
    """Say so to other processes, if there is a kernel store."""
    folder = chosen_folder()
    if folder is not None:
        KernelFiles(folder).keep(_key(profile), _PASSED)


def _key(profile: str) -> str:
    """Return a digest of the GPU's name, of what generates and runs its code, and of this package's own."""
    package = Path(pytest_regional.__file__).parent
    parts = [profile, platform.platform(), platform.python_version(), version("numpy"), *code_keys()]
    parts += [
        path.read_text("utf-8") for name in ("_torch", "emulation") for path in sorted((package / name).rglob("*.py"))
    ]
    return hashlib.sha256("\0".join(["self-test", *parts]).encode()).hexdigest()


__all__ = ["is_known", "remember"]
