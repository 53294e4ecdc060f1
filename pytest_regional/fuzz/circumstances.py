"""Where a finding was met: on which backend and device, in which lane, with which versions."""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_regional.fuzz.lanes import LANES
from pytest_regional.fuzz.strict_json import Field


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """Where a finding was met.

    Attributes:
        backend: the backend, as ``--regional-backend`` takes it.
        device: the device by name.
        lane: the lane that it was found in.
        versions: of torch, and of triton where it is installed.
    """

    backend: str = "reference"
    device: str = "cpu"
    lane: str = "full"
    versions: Mapping[str, str] = field(default_factory=dict)

    def circumstances(self) -> dict[str, Any]:
        """Return them as plain data, which are arguments again."""
        return {
            "backend": self.backend,
            "device": self.device,
            "lane": self.lane,
            "versions": dict(self.versions),
        }


#: The fields that say it.
CIRCUMSTANCES = ("backend", "device", "lane", "versions")

_DEVICE = r"[a-z][a-z0-9_-]*(:[a-z0-9_.-]+)?"
_BACKEND = r"[A-Za-z0-9_][A-Za-z0-9_.+ -]*"


def circumstances_of(fields: Mapping[str, Field]) -> dict[str, Any]:
    """Return what the fields of a finding say of circumstances.

    Raises:
        MalformedError: one says nothing that it could; names it.
    """
    return {
        "backend": _backend(fields["backend"]),
        "device": _matching(fields["device"], _DEVICE, "a device, such as cuda:0"),
        "lane": fields["lane"].one_of(LANES),
        "versions": {name: one.line() for name, one in fields["versions"].mapping(100).items() if _package(one, name)},
    }


def _matching(field: Field, pattern: str, what: str) -> str:
    line = field.line()
    if not re.fullmatch(pattern, line):
        field.refuse(f"{line!r} is not {what}")
    return line


def _package(field: Field, name: str) -> bool:
    return bool(re.fullmatch(r"[\w.-]{1,100}", name, re.ASCII)) or field.refuse("no name of a package")


def _backend(field: Field) -> str:
    """Return the name of a backend, or ``module:attribute``: file names are made of it, and a script's import."""
    module, colon, attribute = field.line().partition(":")
    if not colon:
        return _matching(field, _BACKEND, "a name of letters, digits and '._+- '")
    if not all(map(_is_identifier, (*module.split("."), *attribute.split(".")))):
        field.refuse(f"{field.value!r} is not package.module:attribute")
    return f"{module}:{attribute}"


def _is_identifier(text: str) -> bool:
    # Python takes compatible characters for equal, keywords among them.
    return text.isidentifier() and text == unicodedata.normalize("NFKC", text) and not keyword.iskeyword(text)
