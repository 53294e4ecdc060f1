"""All access to private PyTorch symbols, one function per symbol.

When PyTorch changes, only this package breaks. Each function accesses one private symbol, or one small family that
changes together, and its docstring gives the torch versions it was checked on. A missing symbol raises
:class:`MissingTorchSymbolError` with the symbol and the installed version, not an ``AttributeError`` deep inside a test
run.

Modules by area of PyTorch; later ones import earlier ones:

* ``patching``: private functions that are replaced temporarily, and how.
* ``operators``: types of operators, their schemas, higher-order ones, ``control_deps``.
* ``tracing``: fake modes and values, symbolic sizes, the tracing context, the compile lock, dispatch modes.
* ``fx_graphs``: node metadata and annotations, bodies and copies of graphs, their generated code, tracing to ATen.
* ``pytree``: nested containers.
* ``config``: the configuration modules of Dynamo, AOTAutograd and Inductor, and settings by name.
* ``aot_autograd``: partitioners, donated buffers, metadata of gradients, serializable compilers, the backward engine.
* ``dynamo``: backends by name, compiled callables, compiles ahead of time, errors, counters, resets, guards.
* ``autograd_cache``: the lookups of AOTAutograd's cache, its keys and refusals.
* ``key_details``: what those keys are made of, in words.
* ``inductor``: custom passes, ``standalone_compile``, the steps of ``compile_fx``, output code, interpreted regions.
* ``codegen``: launches of kernels as Inductor writes them, and the graph nodes behind each.
* ``caches``: Inductor's cache directory, files of generated code, portable artifacts, the remote cache.
* ``joint_graph``: graphs of forward and backward with descriptors.
* ``decisions``: what the compilers decide for a program, recorded.
* ``compile_phases``: how long each phase of a compile takes.
* ``cpp``: runs of the C++ compiler, precompiled headers, the CPU.
* ``cpp_loops``: the loops of C++ kernels, and what their bodies read and write.
* ``triton``: Triton's language, interpreter, runtime and compiler.
* ``first_compile``: what the first compile of a process imports and computes.
* ``device``: the patch points for a described GPU.
* ``distributed``: collectives and process groups.
* ``process_state``, ``thread_state``: PyTorch's state outside of its settings, which isolation restores.
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
    """Import and return module ``name``, even a submodule that its package does not import.

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
        f"supported torch, or a newer pytest-regional."
    )
