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
    path, is_file = Path(place), place.endswith(".py")
    if is_file and not path.is_file():
        raise UsageError(f"{place!r} cannot be imported: there is no such file.")
    try:
        if not is_file:
            return importlib.import_module(place)
        # Its folder is searched for what it imports.
        sys.path.insert(0, str(path.parent.resolve()))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except Exception as error:
        # Importing runs the user's code, which may raise anything.
        raise UsageError(f"{place!r} cannot be imported: {type(error).__name__}: {error}.") from error
    return module
