"""The state of the process before a test, and how the test changed it."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from pytest_regional._torch import MissingTorchSymbolError
from pytest_regional.harness.isolation import interpreter, pytorch
from pytest_regional.harness.isolation.watched import Leak, Watched, changed_alike

#: All watched state, in the order of restoring.
WATCHED: tuple[Watched, ...] = (
    *interpreter.FIRST,
    *pytorch.MODES,
    *pytorch.CONFIGURATION,
    *interpreter.INTERPRETER,
    *pytorch.SETTINGS,
    *pytorch.OTHERS,
    *pytorch.LAST,
)

#: State that a backend must restore before it returns from a compile.
WATCHED_WHILE_COMPILING: tuple[Watched, ...] = (
    *pytorch.MODES,
    *pytorch.CONFIGURATION,
    interpreter.ENVIRONMENT,
    interpreter.WORKING_DIRECTORY,
    *pytorch.SETTINGS,
)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Some of the state of the process at one moment."""

    watched: Sequence[Watched]
    values: list[Any] = field(repr=False)  # the environment is among them

    @staticmethod
    def take(*, while_compiling: bool = False) -> Snapshot:
        """Read the current state; with ``while_compiling`` only the part that is quick to read."""
        watched, _ = readable(while_compiling=while_compiling)
        return Snapshot(watched, [each.read() for each in watched])

    def leaks(self) -> tuple[Leak, ...]:
        """Return the differences between now and this snapshot."""
        pairs = zip(self.watched, self.values, strict=True)
        return tuple(leak for each, before in pairs for leak in each.differences(before))

    def restore(self) -> tuple[Leak, ...]:
        """Restore this snapshot's state; return what was changed, restored or not."""
        pairs = zip(self.watched, self.values, strict=True)
        leaks = [leak for each, before in pairs for leak in _restore(each, before)]
        return tuple(leak for leak in leaks if leak.unrestorable or not pytorch.is_pytorchs_doing(leak))

    @contextlib.contextmanager
    def without_imports(self) -> Iterator[None]:
        """While the context lasts, count what an import changes as changed before: it comes with the package."""
        if not _IMPORTS.snapshots:
            sys.meta_path.insert(0, _IMPORTS)
        _IMPORTS.snapshots.append(self)
        try:
            yield
        finally:
            _IMPORTS.snapshots.remove(self)
            if not _IMPORTS.snapshots and _IMPORTS in sys.meta_path:
                sys.meta_path.remove(_IMPORTS)

    def with_changes(self, start: Snapshot, now: Snapshot) -> Iterator[Any]:
        """Yield the values with what changed between two later snapshots of all state."""
        rows = {id(row): number for number, row in enumerate(start.watched)}
        for row, value in zip(self.watched, self.values, strict=True):
            number = rows[id(row)]
            yield changed_alike(value, start.values[number], now.values[number])


#: Their modules are imported late, and many; the rows know what these change.
_KNOWN = frozenset({"torch", "triton", "numpy", "sympy", "pytest_regional", *sys.stdlib_module_names})


class _Imports:
    """Stands before all finders of modules, and notices what an import changes: a package is imported once."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
        self._busy = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return what the other finders find; its loader tells of what it runs."""
        main = threading.current_thread() is threading.main_thread()
        if self._busy or not self.snapshots or not main or name.partition(".")[0] in _KNOWN:
            return None
        finders = (each for each in sys.meta_path if each is not self and hasattr(each, "find_spec"))
        spec = next(filter(None, (each.find_spec(name, path, target) for each in finders)), None)
        loader = getattr(spec, "loader", None)
        # Those of built-in and frozen modules are classes; one of several modules may be told already.
        if hasattr(type(loader), "exec_module") and "exec_module" not in getattr(
            loader, "__dict__", {"exec_module": 0}
        ):
            vars(loader)["exec_module"] = functools.partial(self._run, loader)
        return spec

    def _run(self, loader: Any, module: ModuleType) -> None:
        vars(loader).pop("exec_module", None)
        start, self._busy = Snapshot.take(), True
        try:
            type(loader).exec_module(loader, module)
        finally:
            self._busy = False
            now = Snapshot.take()
            for snapshot in self.snapshots:
                snapshot.values[:] = snapshot.with_changes(start, now)


_IMPORTS = _Imports()


@functools.cache
def readable(*, while_compiling: bool) -> tuple[Sequence[Watched], Sequence[Watched]]:
    """Return the rows that this torch supports, and those that it does not.

    If a private name moves, only its row is lost, and not every test; ``tests/attacks/test_leaks.py`` fails then.
    """
    rows = WATCHED_WHILE_COMPILING if while_compiling else WATCHED
    missing = [each for each in rows if _is_missing(each)]
    return [each for each in rows if each not in missing], missing


def _is_missing(watched: Watched) -> bool:
    try:
        watched.read()
    except MissingTorchSymbolError:
        return True
    return False


def _restore(watched: Watched, before: Any) -> list[Leak]:
    leaks = list(watched.differences(before))
    if not leaks:
        return []
    try:
        watched.restore(before)
    except Exception as error:  # noqa: BLE001 - whatever it is, the process is not what it was
        why = f"{type(error).__name__}: {error}"
        return [replace(leak, after=f"{leak.after!r} ({why})", restored=False, unrestorable=True) for leak in leaks]
    still = {leak.name for leak in watched.differences(before)}
    return [replace(leak, restored=False, unrestorable=True) if leak.name in still else leak for leak in leaks]


__all__ = ["WATCHED", "WATCHED_WHILE_COMPILING", "Snapshot", "readable"]
