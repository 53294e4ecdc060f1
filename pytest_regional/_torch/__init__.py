"""Every touch of a private PyTorch symbol, one function a symbol.

This package is what breaks when PyTorch moves, and nothing else: each function reaches one private symbol (or one
small family that always moves together), its docstring says which torch versions it was checked on, and a symbol that
is gone raises :class:`MissingTorchSymbolError` naming the symbol and the installed version instead of an
``AttributeError`` deep inside a test run.

Modules, by what they touch:

* ``annotations``: node metadata and ``torch.fx.traceback``.
* ``region_compile``: what the reference backend needs (AOTAutograd, ``standalone_compile``, tracing context).
* ``seams``: where the harness listens (code generation, caches, Dynamo frames).
* ``state``: configuration modules, resets, caches on disk.
"""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType
from typing import Any

from pytest_regional._errors import RegionalError


class MissingTorchSymbolError(RegionalError, ImportError):
    """A private PyTorch symbol that this version of pytest-regional needs does not exist in the installed torch."""


@cache
def torch_version() -> tuple[int, int]:
    """Return the installed torch's ``(major, minor)``."""
    import torch

    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def private_module(name: str) -> ModuleType:
    """Import and return module ``name``, which ``symbol`` finds only if somebody else has imported it.

    Raises:
        MissingTorchSymbolError: naming module and torch version, when it does not exist.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise _missing(name) from error


def symbol(module: str, name: str) -> Any:
    """Return attribute ``name`` of ``module``.

    Raises:
        MissingTorchSymbolError: naming symbol and torch version, when either does not exist.
    """
    try:
        value: Any = importlib.import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError) as error:
        raise _missing(f"{module}.{name}") from error
    return value


def _missing(name: str) -> MissingTorchSymbolError:
    import torch

    return MissingTorchSymbolError(
        f"{name} does not exist in torch {torch.__version__}; pytest-regional supports torch 2.11 to 2.15. Install a "
        f"supported torch, or a pytest-regional that knows this one."
    )
