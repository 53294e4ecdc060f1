"""What a server imports before it forks."""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import subprocess
import sys

#: What a process of ``in_new_process`` imports besides torch and its compilers; not the module that it runs.
_HARNESS = (
    "pytest_regional.harness.devices.emulated",
    "pytest_regional.harness.process",
    "pytest_regional.harness.regional",
    "pytest_regional.harness.vacuity",
)


_PRINT_PATH = "import json, sys; print(json.dumps(sys.path[0 if getattr(sys.flags, 'safe_path', False) else 1 :]))"


def own_search_path() -> list[str]:
    """Return where this interpreter looks for modules after the working folder and ``PYTHONPATH``.

    An interpreter without ``PYTHONPATH`` tells: what is there, and in a ``.pth`` file too, is in a search path once.

    Raises:
        subprocess.CalledProcessError: it does not start.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    printed = subprocess.run(
        [sys.executable, "-c", _PRINT_PATH], env=environment, capture_output=True, encoding="utf-8", check=True
    )
    found: list[str] = json.loads(printed.stdout.splitlines()[-1])
    return found


def compilers() -> None:
    """Import PyTorch and its compilers, and what runs tests: nothing of this package that its tests look at."""
    for name in ("numpy", "pytest"):
        importlib.import_module(name)

    from pytest_regional._torch.first_compile import import_all, prepare_for_cpu

    import_all()
    prepare_for_cpu()
    _keep()


def harness_for_cpu() -> None:
    """As :func:`harness`, for processes that compile for nothing but the CPU."""
    from pytest_regional._torch.first_compile import prepare_for_cpu

    harness()
    prepare_for_cpu()
    _keep()


def harness() -> None:
    """Import the harness, and all that its first compile does."""
    for name in _HARNESS:
        importlib.import_module(name)

    from pytest_regional._torch.first_compile import import_all

    import_all()
    _keep()


def _keep() -> None:
    gc.collect()
    gc.freeze()  # processes collect only what is theirs, and do not copy what they share
    atexit.unregister(gc.unfreeze)
    atexit.register(gc.unfreeze)  # libraries complain of what is not collected at the end
