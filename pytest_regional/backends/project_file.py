"""What a repository's ``pyproject.toml`` says of backends: capabilities that they lack, tests that fail on them.

.. code-block:: toml

    [tool.pytest-regional.backends.mine]
    disclaims = { rng = "no seeds are kept yet" }
    known-failures = [{ test = "tests/test_mine.py::test_parity*", reason = "...", link = "..." }]
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_regional._errors import RegionalError
from pytest_regional._files import TextFileError, text_of
from pytest_regional._text import unknown_name
from pytest_regional.backends.capabilities import Capabilities, Support, UnknownCapabilityError, unsupported
from pytest_regional.backends.spec import BackendSpec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest needs it there, too

SECTION = "tool.pytest-regional.backends"
_KEYS = ("disclaims", "known-failures")
_FAILURE_KEYS = ("test", "reason", "link")


class ProjectFileError(RegionalError, ValueError):
    """A section of a ``pyproject.toml`` that says nothing we know; the message names file and key."""


@dataclasses.dataclass(frozen=True)
class ProjectFile:
    """The section of one file.

    Attributes:
        path: the file.
        disclaimed: by backend, the capabilities that it lacks, each with a reason.
        failures: by backend, ``(test, reason, link)`` of each known failure.
    """

    path: Path
    disclaimed: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    failures: Mapping[str, tuple[tuple[str, str, str], ...]] = dataclasses.field(default_factory=dict)

    @staticmethod
    def read(folder: Path) -> ProjectFile:
        """Return what ``folder/pyproject.toml`` says; nothing where there is no such file or section.

        Raises:
            ProjectFileError: a section that is written otherwise.
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
            raise ProjectFileError(f"{path}: lists or tables stand too deep in each other") from error
        tools = whole.get("tool", {})
        section = tools.get("pytest-regional", {}) if isinstance(tools, dict) else {}
        if not isinstance(section, dict) or not isinstance(section.get("backends", {}), dict):
            raise ProjectFileError(f"{path}: [{SECTION}]: expected a table for each backend")
        unknown = [key for key in section if key != "backends"]
        if unknown:
            raise ProjectFileError(f"{path}: [tool.pytest-regional]: {unknown_name('key', unknown[0], ['backends'])}")
        backends = section.get("backends", {})
        return ProjectFile(
            path,
            {name: _disclaimed(f"{path}: [{SECTION}.{name}]", said) for name, said in backends.items()},
            {name: _failures(f"{path}: [{SECTION}.{name}]", said) for name, said in backends.items()},
        )

    def applied_to(self, spec: BackendSpec) -> BackendSpec:
        """Return ``spec`` without the capabilities that the file disclaims for it.

        Raises:
            ProjectFileError: a name that is none of its capabilities.
        """
        reasons = self.disclaimed.get(spec.name, {})
        try:
            answers = {name: _answer(spec.capabilities, name, reason) for name, reason in reasons.items()}
        except UnknownCapabilityError as error:
            raise ProjectFileError(f"{self.path}: [{SECTION}.{spec.name}] disclaims: {error}") from error
        if not answers:
            return spec
        capabilities = copy.copy(spec.capabilities)
        capabilities.__class__ = type("DisclaimingCapabilities", (type(capabilities),), answers)
        return dataclasses.replace(spec, capabilities=capabilities)


def _answer(capabilities: Capabilities, name: str, reason: str) -> property:
    sentence, support = capabilities.sentence(name), unsupported(reason)

    def answer(_: Any) -> Support:
        return support

    return property(answer, doc=sentence)


def _disclaimed(where: str, said: Any) -> dict[str, str]:
    if not isinstance(said, dict):
        raise ProjectFileError(f"{where}: expected a table with {' and '.join(_KEYS)}")
    for key in said:
        if key not in _KEYS:
            raise ProjectFileError(f"{where}: {unknown_name('key', key, _KEYS)}")
    reasons = said.get("disclaims", {})
    if not isinstance(reasons, dict) or not all(isinstance(reason, str) and reason for reason in reasons.values()):
        raise ProjectFileError(f"{where} disclaims: expected a table of capabilities, each with the reason in words")
    return dict(reasons)


def _failures(where: str, said: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    listed = said.get("known-failures", [])
    if not isinstance(listed, list):
        raise ProjectFileError(f"{where} known-failures: expected a list of tables")
    for number, failure in enumerate(listed, 1):
        fields = set(failure) if isinstance(failure, dict) else set()
        if fields != set(_FAILURE_KEYS) or not all(isinstance(text, str) and text for text in failure.values()):
            raise ProjectFileError(
                f"{where} known-failures, number {number}: expected {', '.join(_FAILURE_KEYS)}, all three"
            )
    return tuple((failure["test"], failure["reason"], failure["link"]) for failure in listed)


__all__ = ["SECTION", "ProjectFile", "ProjectFileError"]
