"""Valid results of a pass's ``uuid()``, and their form in a cache key."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import pathlib
import uuid
from collections.abc import Callable, Hashable
from functools import cache
from pathlib import Path
from typing import Any

import pytest_regional
from pytest_regional._errors import RegionalError
from pytest_regional._torch.inductor import custom_graph_pass_base

_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_ADVICE = "return a non-empty str or bytes, an int, or a tuple of these"


class PreGradPassError(RegionalError, RuntimeError):
    """An unusable pre-grad pass: the message says which, what is wrong and what to do."""


def pass_name(custom: Any) -> str:
    """Return the name of a pass: its class's, or a function's own."""
    return str(getattr(custom, "__qualname__", None) or type(custom).__qualname__)


def uuid_of(custom: Any) -> Hashable | None:
    """Return the uuid of a pass in its form for keys, or ``None`` without one.

    Only a ``CustomGraphPass`` has one, as in PyTorch. Exceptions from ``uuid()`` propagate.

    Raises:
        PreGradPassError: a uuid that is empty, changes between calls, or means nothing in another process.
    """
    if not isinstance(custom, custom_graph_pass_base()):
        return None
    return checked_uuid(custom.uuid, f"the pre-grad pass {pass_name(custom)}", PreGradPassError)


def checked_uuid(uuid: Callable[[], Any], owner: str, error: type[Exception]) -> Hashable | None:
    """Call ``uuid`` and return its value in the form for keys, or ``None``.

    Args:
        uuid: called twice; its exceptions propagate.
        owner: its owner in messages, as in ``the pass x``.
        error: raised for a uuid that is empty, changes between calls, or means nothing in another process.
    """
    value = uuid()
    if value is None:
        return None
    stable = _checked(value, owner, error)
    again = uuid()
    if _differs(stable, again):
        raise error(
            f"uuid() of {owner} returned {value!r} and then {again!r}: no cache entry would ever be found again. "
            f"Return what identifies the pass's code and settings, the same on each call."
        )
    return stable


def _checked(value: Any, owner: str, error: type[Exception]) -> Hashable:
    what = f"uuid() of {owner} returned {value!r}"
    try:
        hash(value)
    except TypeError as reason:
        kind = type(value).__name__
        raise error(f"{what}, a value of type {kind} that cannot be hashed: {_ADVICE}.") from reason
    try:
        stable = stable_form(value)
    except TypeError as reason:
        raise error(f"{what}, which means nothing in another process ({reason}): {_ADVICE}.") from reason
    if isinstance(value, str | bytes | tuple | frozenset) and not value:
        raise error(f"{what}, which identifies nothing: {_ADVICE}, or return None for a pass without a uuid.")
    return stable


def _differs(stable: Hashable, again: Any) -> bool:
    try:
        return repr(stable_form(again)) != repr(stable)
    except TypeError:
        return True


def stable_form(value: Any) -> Hashable:
    """Return ``value`` as plain data whose ``repr`` is unique and the same in every process.

    Raises:
        TypeError: a type whose values cannot be compared by content.
    """
    if type(value) in _PLAIN:
        return value  # type: ignore[no-any-return]
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, enum.Enum):
        return (kind, value.name)
    if isinstance(value, uuid.UUID | pathlib.PurePath | str):  # torch.__version__ is a str subclass
        return (kind, str(value))
    if isinstance(value, frozenset):
        return (kind, *sorted(map(repr, map(stable_form, value))))
    if type(value) is tuple:
        return tuple(map(stable_form, value))
    if isinstance(value, tuple):
        return (kind, *map(stable_form, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ((field.name, stable_form(getattr(value, field.name))) for field in dataclasses.fields(value))
        return (kind, *fields)
    raise TypeError(f"a {kind} is not plain data")


@cache
def _own_code() -> str:
    package = Path(pytest_regional.__file__).parent
    digest = hashlib.sha256()
    for folder in ("_torch", "reference"):
        for file in sorted((package / folder).rglob("*.py")):
            digest.update(f"{file.relative_to(package).as_posix()}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


#: Part of our own passes' uuids; another version of their code has another uuid.
OWN_CODE = _own_code()
