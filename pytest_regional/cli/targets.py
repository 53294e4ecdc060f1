"""From ``package.module:attribute`` or ``path/to/file.py:attribute`` to the object."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_regional._base.errors import RegionalError
from pytest_regional._base.text import unknown_name


class UsageError(RegionalError):
    """An argument is not understood; the message says which one, and what to write."""


def find(target: str) -> Any:
    """Return what ``target`` names.

    Raises:
        UsageError: it is no ``module:attribute``, the module does not import, or has no such attribute.
    """
    place, separator, name = target.rpartition(":")
    if not separator or not place or not name:
        raise UsageError(f"{target!r} names nothing: write package.module:attribute, or path/to/file.py:attribute.")
    try:
        return functools.reduce(getattr, name.split("."), _module(place))
    except AttributeError as error:
        known = [known for known in getattr(error.obj, "__dict__", {}) if not known.startswith("_")]
        raise UsageError(f"{place}: {unknown_name('attribute', error.name or name, known)}") from None


def _module(place: str) -> ModuleType:
    try:
        return _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:
        # Importing runs the user's code, which may raise anything.
        what = "there is no such file" if isinstance(error, FileNotFoundError) else f"{type(error).__name__}: {error}"
        raise UsageError(f"{place!r} cannot be imported: {what}.") from error


def _from_file(path: Path) -> ModuleType:
    """Import a file that is not on the path; its folder is searched for what it imports."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(path)
    sys.path.insert(0, str(path.parent.resolve()))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
