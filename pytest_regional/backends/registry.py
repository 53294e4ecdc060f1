"""From a name on the command line to a :class:`BackendSpec`. Imports no torch until a backend is made."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
from collections.abc import Callable
from typing import Any

from pytest_regional._text import unknown_name

from .spec import BackendSpec

GROUP = "pytest_regional.backends"


class UnknownBackendError(LookupError):
    """A name that is neither built in, nor an entry point, nor ``package.module:attribute``."""


class BackendImportError(ImportError):
    """A backend was found but could not be loaded; the message says what its import raised."""


def _built_in() -> dict[str, Callable[[], BackendSpec]]:
    from . import adapters

    return {
        "reference": adapters.reference,
        "torch": adapters.torch_regional,
        "inductor": adapters.inductor,
        "aot_eager": adapters.aot_eager,
    }


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}


def names() -> tuple[str, ...]:
    """Return the names of all installed backends, built-in ones first."""
    return (*_built_in(), *sorted(set(_entry_points()) - set(_built_in())))


def origin(name: str) -> str:
    """Say where backend ``name`` comes from."""
    if name in _built_in():
        return "built in"
    entry = _entry_points().get(name)
    if entry is None:
        return "named by --regional-backend or regional_backend"
    package = entry.dist.name if entry.dist else "an unknown package"
    return f"{entry.value}, of {package}"


def resolve(name: str) -> BackendSpec:
    """Return the specification of backend ``name``.

    Args:
        name: a built-in name, the name of an entry point of group ``pytest_regional.backends``, or
            ``package.module:attribute`` naming a :class:`BackendSpec` or any Dynamo backend.

    Raises:
        UnknownBackendError: nothing of that name exists.
        BackendImportError: it exists and could not be loaded.
    """
    return dataclasses.replace(_find(name), origin=name)


def _find(name: str) -> BackendSpec:
    if name in _built_in():
        return _built_in()[name]()
    entries = _entry_points()
    if name in entries:
        return _specify(name, _load(name, entries[name].load))
    module, colon, attribute = name.partition(":")
    if colon and module and attribute:
        return _specify(name, _load(name, lambda: _attribute(module, attribute)))
    raise UnknownBackendError(
        f"{unknown_name('backend', name, names())} A backend may also be given as package.module:attribute."
    )


def _attribute(module: str, attribute: str) -> Any:
    value: Any = importlib.import_module(module)
    for part in attribute.split("."):
        value = getattr(value, part)
    return value


def _load(name: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:
        raise BackendImportError(f"backend {name!r} could not be loaded: {type(error).__name__}: {error}") from error


def _specify(name: str, value: Any) -> BackendSpec:
    if isinstance(value, BackendSpec):
        return value
    if not callable(value):
        raise BackendImportError(
            f"backend {name!r} is {type(value).__name__}; expected a BackendSpec or a Dynamo backend (a callable)"
        )
    return BackendSpec(name=_short_name(name), factory=lambda: value)


def _short_name(name: str) -> str:
    return name.rpartition(":")[2] if ":" in name else name


def full_graph_modules() -> tuple[Any, Any]:
    """Return the modules that capture, partition and compile whole graphs: the pipeline, and its passes."""
    return (
        importlib.import_module("pytest_regional.reference.pipeline"),
        importlib.import_module("pytest_regional.reference.passes"),
    )
