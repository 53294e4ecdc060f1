"""All access to private PyTorch symbols, one function or declaration per symbol.

When PyTorch changes, only this package breaks. Each function accesses one private symbol, or one small family that
changes together. A symbol that is only returned or called is declared, with :func:`fetching`, :func:`calling` or
:func:`importing`. Where a symbol does not exist in all of the :data:`TESTED` versions, or was read in other ones, its
function says in which. A missing symbol raises :class:`MissingTorchSymbolError` with the symbol and the installed
version, not an ``AttributeError`` deep inside a test run.

Modules by area of PyTorch:

* ``patching``: private functions that are replaced temporarily, and how.
* ``operators``: types of operators, their schemas, higher-order ones, ``control_deps``.
* ``tracing``: fake modes and values, symbolic sizes, the tracing context, the compile lock, dispatch modes.
* ``fx_graphs``: node metadata and annotations, bodies and copies of graphs, tracing to ATen; nested containers.
* ``config``: the configuration modules of Dynamo, AOTAutograd and Inductor, and settings by name.
* ``aot_autograd``: partitioners, donated buffers, metadata of gradients, serializable compilers, the backward engine.
* ``dynamo``: backends by name, compiled callables, compiles ahead of time, errors, counters, resets, guards.
* ``autograd_cache``: the lookups of AOTAutograd's cache, its keys, in words too, and refusals.
* ``inductor``: custom passes, ``standalone_compile``, the steps of ``compile_fx``, output code, interpreted regions,
  launches of kernels as Inductor writes them.
* ``caches``: Inductor's cache directory, files of generated code, portable artifacts, the remote cache.
* ``joint_graph``: graphs of forward and backward with descriptors.
* ``compile_phases``: how long each phase of a compile takes.
* ``cpp``: runs of the C++ compiler, precompiled headers, the CPU.
* ``triton``: Triton's language, interpreter and compiler, the patch points for a described GPU, the first compile.
* ``pass_forms``: how a pass is called at each stage; ``vetoes``: optimizations that can be left out, one by one.
* ``distributed``: collectives and process groups, a fake one too.
* ``process_state``: PyTorch's state outside of its settings, which isolation restores, and what is registered for
  operators that are not torch's; ``thread_state``: that of a thread.

May import: ``_base``.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_regional._base.errors import RegionalError


class MissingTorchSymbolError(RegionalError, ImportError):
    """A private PyTorch symbol that this version of pytest-regional needs does not exist in the installed torch."""


#: The first and the last minor version that this package is tested with.
TESTED = ((2, 11), (2, 15))


def installed_version() -> str:
    """Return ``torch.__version__`` as it is, without importing torch."""
    if "torch" in sys.modules:
        return str(sys.modules["torch"].__version__)
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("torch is not installed", name="torch")
    return str(runpy.run_path(str(Path(spec.origin).with_name("version.py")))["__version__"])


def release_of(version: str) -> str:
    """Return the release number in a version of torch: ``2.16.0`` for ``2.16.0a0+git1234``.

    A version without a number, such as ``main+git1234``, is a build of the sources: later than all tested versions.
    """
    number = re.match(r"\d+\.\d+(\.\d+)?", version)
    return number[0] if number else f"{TESTED[1][0]}.{TESTED[1][1] + 1}"


def torch_version() -> tuple[int, int]:
    """Return the installed torch's ``(major, minor)``; torch need not be imported."""
    major, minor = release_of(installed_version()).split(".")[:2]
    return int(major), int(minor)


def tested_versions() -> str:
    """Return :data:`TESTED` in words."""
    return " to ".join(f"{major}.{minor}" for major, minor in TESTED)


def private_module(name: str) -> ModuleType:
    """Import and return module ``name``, even a submodule that its package does not import."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise _missing(name) from error


def symbol(module: str, name: str) -> Any:
    """Return attribute ``name`` of ``module``."""
    try:
        value: Any = importlib.import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError) as error:
        raise _missing(f"{module}.{name}") from error
    return value


def fetching(module: str, name: str) -> Callable[[], Any]:
    """Return a function that returns a symbol. It looks it up at each call, so that a test's patch is seen."""
    return lambda: symbol(module, name)


def calling(module: str, name: str) -> Callable[..., Any]:
    """Return a function that calls a symbol with what it is given; looked up as by :func:`fetching`."""
    return lambda *arguments, **options: symbol(module, name)(*arguments, **options)


def importing(name: str) -> Callable[[], Any]:
    """Return a function that imports and returns a module, as :func:`private_module`."""
    return lambda: private_module(name)


def _missing(name: str) -> MissingTorchSymbolError:
    return MissingTorchSymbolError(
        f"{name} does not exist in torch {installed_version()}; pytest-regional is tested with torch "
        f"{tested_versions()}. Install one of them, or a newer pytest-regional."
    )
