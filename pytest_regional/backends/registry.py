"""From a name to a :class:`BackendSpec`, and what ``pyproject.toml`` says of it. Imports torch only to make one."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytest_regional._base.errors import RegionalError, RegionalValueError
from pytest_regional._base.files import text_of
from pytest_regional._base.text import unknown_name
from pytest_regional._torch.dynamo import registered_names
from pytest_regional.backends import adapters
from pytest_regional.backends.spec import BackendSpec

GROUP = "pytest_regional.backends"

#: Where packages name backends for ``torch.compile``.
TORCH_GROUP = "torch_dynamo_backends"
_OURS = "regional"


class UnknownBackendError(RegionalError, LookupError):
    """A name that is neither built in, nor an entry point, nor ``package.module:attribute``."""


class BackendImportError(RegionalError, ImportError):
    """A backend was found but could not be loaded; the message says what its import raised."""


def _built_in() -> dict[str, Callable[[], BackendSpec]]:
    # The reference is an optional part.
    reference = {"reference": adapters.reference} if importlib.util.find_spec("pytest_regional.reference") else {}
    return {
        **reference,
        "torch": adapters.torch_regional,
        "inductor": adapters.inductor,
        "aot_eager": adapters.aot_eager,
    }


def _entry_points(group: str = GROUP) -> dict[str, importlib.metadata.EntryPoint]:
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=group)}


def names() -> tuple[str, ...]:
    """Return the names of all installed backends: built-in ones, those made for tests, those of ``torch.compile``."""
    return tuple(dict.fromkeys((*_built_in(), *sorted(_entry_points()), *sorted(_for_torch_compile()))))


def _for_torch_compile() -> dict[str, importlib.metadata.EntryPoint]:
    """Return the backends that packages give to ``torch.compile``; ours is there as ``reference``."""
    return {name: entry for name, entry in _entry_points(TORCH_GROUP).items() if name != _OURS}


def origin(name: str) -> str:
    """Say where backend ``name`` comes from."""
    if name in _built_in():
        return "built in"
    for entries, how in ((_entry_points(), ""), (_for_torch_compile(), ", registered with torch.compile")):
        if name in entries:
            package = entries[name].dist
            return f"{entries[name].value}, of {package.name if package else 'an unknown package'}{how}"
    return "named by --regional-backend or regional_backend"


def resolve(name: str) -> BackendSpec:
    """Return the specification of backend ``name``.

    Args:
        name: a built-in name, the name of an entry point of group ``pytest_regional.backends``, a name that
            ``torch.compile`` takes, or ``package.module:attribute`` naming a :class:`BackendSpec` or any Dynamo
            backend.

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
    if all(name.partition(":")):
        return _specify(name, _load(name, lambda: pkgutil.resolve_name(name)))
    if name == _OURS and "reference" in _built_in():
        return _built_in()["reference"]()
    registered = _for_torch_compile()
    if name in registered:
        # Loaded now, not in the first test that compiles: what its import changes is no test's doing.
        return _of_torch_compile(name, _load(name, registered[name].load))
    # What `torch.compile` takes besides; names for debugging only where this is one.
    of_torch = [one for one in registered_names(name) if one not in (*names(), _OURS)]
    if name in of_torch:
        return _of_torch_compile(name, name)
    known = unknown_name("backend", name, names(), unlisted=of_torch)
    others = f" torch.compile also has {', '.join(of_torch)}." if of_torch else ""
    raise UnknownBackendError(f"{known}{others} A backend may also be given as package.module:attribute.")


def _of_torch_compile(name: str, backend: Any) -> BackendSpec:
    return BackendSpec(name, factory=lambda: backend, capabilities=adapters.GraphCapabilities(), plain=True)


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
    return BackendSpec(name=name.rpartition(":")[2], factory=lambda: value, plain=True)


def full_graph_modules() -> tuple[Any, Any]:
    """Return the modules that capture, partition and compile whole graphs: the pipeline, and its passes."""
    from pytest_regional.reference import passes, pipeline

    return pipeline, passes


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest needs it there, too

SECTION = "tool.pytest-regional.backends"


@dataclasses.dataclass(frozen=True)
class ProjectFile:
    """The section of one file.

    Attributes:
        path: the file.
        disclaimed: by backend, the capabilities that it lacks, each with a reason.
    """

    path: Path
    disclaimed: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)

    @staticmethod
    def read(folder: Path) -> ProjectFile:
        """Return what ``folder/pyproject.toml`` says; nothing where there is no such file or section.

        Raises:
            RegionalValueError: a section that is not understood.
        """
        path = folder / "pyproject.toml"
        if not path.is_file():
            return ProjectFile(path)
        try:
            whole = tomllib.loads(text_of(path))
        except tomllib.TOMLDecodeError as error:
            raise RegionalValueError(f"{path}: {error}") from error
        except RecursionError as error:
            raise RegionalValueError(f"{path}: lists or tables are nested too deeply") from error
        tools = whole.get("tool", {})
        section = tools.get("pytest-regional", {}) if isinstance(tools, dict) else {}
        if not isinstance(section, dict) or not isinstance(section.get("backends", {}), dict):
            raise RegionalValueError(f"{path}: [{SECTION}]: expected a table for each backend")
        for key in section:
            if key != "backends":
                raise RegionalValueError(f"{path}: [tool.pytest-regional]: {unknown_name('key', key, ['backends'])}")
        disclaimed = {}
        for name, said in section.get("backends", {}).items():
            where = f"{path}: [{SECTION}.{name}]"
            if not isinstance(said, dict):
                raise RegionalValueError(f"{where}: expected a table with disclaims")
            for key in said:
                if key != "disclaims":
                    raise RegionalValueError(f"{where}: {unknown_name('key', key, ['disclaims'])}")
            reasons = said.get("disclaims", {})
            if not isinstance(reasons, dict) or not all(isinstance(why, str) and why for why in reasons.values()):
                raise RegionalValueError(
                    f"{where} disclaims: expected a table of capabilities, each with the reason in words"
                )
            disclaimed[name] = dict(reasons)
        return ProjectFile(path, disclaimed)

    def applied_to(self, spec: BackendSpec) -> BackendSpec:
        """Return ``spec`` without the capabilities that the file disclaims for it.

        Raises:
            RegionalValueError: a name that is none of its capabilities.
        """
        reasons = self.disclaimed.get(spec.name)
        if not reasons:
            return spec
        try:
            return dataclasses.replace(spec, capabilities=spec.capabilities.disclaiming(reasons))
        except RegionalValueError as error:
            raise RegionalValueError(f"{self.path}: [{SECTION}.{spec.name}] disclaims: {error}") from error
