"""What a repository's ``pyproject.toml`` says of backends: the capabilities that they lack.

.. code-block:: toml

    [tool.pytest-regional.backends.mine]
    disclaims = { rng = "no seeds are kept yet" }
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_regional._errors import RegionalError
from pytest_regional._files import TextFileError, text_of
from pytest_regional._text import unknown_name
from pytest_regional.backends.capabilities import UnknownCapabilityError
from pytest_regional.backends.spec import BackendSpec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest needs it there, too

SECTION = "tool.pytest-regional.backends"
_KEYS = ("disclaims",)


class ProjectFileError(RegionalError, ValueError):
    """A section of a ``pyproject.toml`` that is not understood; the message names file and key."""


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
            ProjectFileError: a section that is not understood.
        """
        path = folder / "pyproject.toml"
        if not path.is_file():
            return ProjectFile(path)
        try:
            whole = tomllib.loads(text_of(path))
        except tomllib.TOMLDecodeError as error:
            raise ProjectFileError(f"{path}: {error}") from error
        except TextFileError as error:
            raise ProjectFileError(str(error)) from error
        except RecursionError as error:
            raise ProjectFileError(f"{path}: lists or tables are nested too deeply") from error
        tools = whole.get("tool", {})
        section = tools.get("pytest-regional", {}) if isinstance(tools, dict) else {}
        if not isinstance(section, dict) or not isinstance(section.get("backends", {}), dict):
            raise ProjectFileError(f"{path}: [{SECTION}]: expected a table for each backend")
        unknown = [key for key in section if key != "backends"]
        if unknown:
            raise ProjectFileError(f"{path}: [tool.pytest-regional]: {unknown_name('key', unknown[0], ['backends'])}")
        backends = section.get("backends", {})
        return ProjectFile(
            path, {name: _disclaimed(f"{path}: [{SECTION}.{name}]", said) for name, said in backends.items()}
        )

    def applied_to(self, spec: BackendSpec) -> BackendSpec:
        """Return ``spec`` without the capabilities that the file disclaims for it.

        Raises:
            ProjectFileError: a name that is none of its capabilities.
        """
        reasons = self.disclaimed.get(spec.name)
        if not reasons:
            return spec
        try:
            return dataclasses.replace(spec, capabilities=spec.capabilities.disclaiming(reasons))
        except UnknownCapabilityError as error:
            raise ProjectFileError(f"{self.path}: [{SECTION}.{spec.name}] disclaims: {error}") from error


def _disclaimed(where: str, said: Any) -> dict[str, str]:
    if not isinstance(said, dict):
        raise ProjectFileError(f"{where}: expected a table with {', '.join(_KEYS)}")
    for key in said:
        if key not in _KEYS:
            raise ProjectFileError(f"{where}: {unknown_name('key', key, _KEYS)}")
    reasons = said.get("disclaims", {})
    if not isinstance(reasons, dict) or not all(isinstance(reason, str) and reason for reason in reasons.values()):
        raise ProjectFileError(f"{where} disclaims: expected a table of capabilities, each with the reason in words")
    return dict(reasons)
