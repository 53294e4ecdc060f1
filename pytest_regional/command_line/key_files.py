"""Files of cache keys: ``explain-key A --save FILE.json`` in one process, to be compared in another one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from pytest_regional._cache_keys import GROUPS, CacheKey, Parts, RegionKey
from pytest_regional._errors import RegionalError
from pytest_regional._files import dumps, write_whole
from pytest_regional.fuzz.findings.strict_json import Field, MalformedError, read
from pytest_regional.harness.cache_keys import GraphKey, ProgramKeys

#: Changed where a file's fields do.
VERSION = 1

#: Most settings, ops, annotations or inputs of one graph.
_MOST = 1_000_000


class KeyFileError(RegionalError, ValueError):
    """A file of keys that cannot be read or written; the message names it, and the place in it."""


def save(keys: ProgramKeys, path: Path) -> None:
    """Write ``keys`` to ``path``.

    Raises:
        KeyFileError: it cannot be written.
    """
    data = {"version": VERSION, **dataclasses.asdict(keys)}
    try:
        write_whole(path, dumps(data, indent=1).encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise KeyFileError(f"{path} cannot be written: {error.strerror}") from error


def load(path: Path) -> ProgramKeys:
    """Return the keys in ``path``.

    Raises:
        KeyFileError: it cannot be read, or holds something else.
    """
    try:
        return _program(Field(read(path)))
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {error.strerror}") from error
    except MalformedError as error:
        said = str(error)
        shown = said if said.startswith(("is ", "has ", "holds ")) else f"is no file of keys: {said}"
        raise KeyFileError(f"{path} {shown}. Write one with: pytest-regional explain-key TARGET --save FILE") from error


def _program(document: Field) -> ProgramKeys:
    found = document.mapping()
    if "version" in found and found["version"].value != VERSION:
        found["version"].refuse(f"this is not version {VERSION}, which this release reads")
    fields = document.fields(("version", "program", "backend", "graphs", "changed_settings", "process"))
    return ProgramKeys(
        fields["program"].text(),
        fields["backend"].line(),
        tuple(map(_graph, fields["graphs"].items())),
        tuple(name.text() for name in fields["changed_settings"].items(_MOST)),
        _texts(fields["process"]),
    )


def _graph(field: Field) -> GraphKey:
    fields = field.fields(("key", "ingredients", "inputs"))
    return GraphKey(
        _key(fields["key"]),
        _parts(fields["ingredients"]),
        tuple(name.text() for name in fields["inputs"].items(_MOST)),
    )


def _key(field: Field) -> CacheKey:
    fields = field.fields(("key", "refusal", "ingredients", "regions"))
    return CacheKey(
        fields["key"].line(),
        fields["refusal"].text(),
        _parts(fields["ingredients"]),
        tuple(map(_region, fields["regions"].items())),
    )


def _region(field: Field) -> RegionKey:
    fields = field.fields(("name", "region", "key", "ingredients", "symbolic"))
    return RegionKey(
        fields["name"].text(),
        fields["region"].text(),
        fields["key"].line(),
        _texts(fields["ingredients"]),
        fields["symbolic"].flag(),
    )


def _parts(field: Field) -> Parts:
    return {name: _texts(group) for name, group in field.fields((), GROUPS).items()}


def _texts(field: Field) -> dict[str, Any]:
    return {name: value.text() for name, value in field.mapping(_MOST).items()}
