"""Values as text that is the same in every process: what cache keys are made of."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from collections.abc import Mapping, Set
from typing import Any

import torch

_ATOMS = (bool, int, float, complex, str, bytes, type(None))
_TORCH_VALUES = (torch.dtype, torch.device, torch.layout, torch.memory_format)


class UnstableValueError(ValueError):
    """A value that enters a cache key has no text that another process would find the same."""


def stable_text(value: Any) -> str:
    """Describe ``value`` by type and content.

    Containers are described by their items, dataclasses by their fields, objects with a ``uuid()`` method (Inductor's
    custom passes) by what that returns.

    Raises:
        UnstableValueError: for anything else.
    """
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if type(value) in _ATOMS:
        return f"{type(value).__name__}:{value!r}"
    if isinstance(value, _TORCH_VALUES):
        return repr(value)
    if isinstance(value, Mapping):
        return _joined("{}", sorted(f"{stable_text(key)}={stable_text(item)}" for key, item in value.items()))
    if isinstance(value, Set):
        return _joined("{}", sorted(map(stable_text, value)))
    if isinstance(value, (list, tuple)):
        return _joined("[]", map(stable_text, value))
    if isinstance(value, slice):
        return f"slice{stable_text((value.start, value.stop, value.step))}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__qualname__}{stable_text(fields_of(value))}"
    return _by_uuid(value)


def fields_of(value: Any) -> dict[str, Any]:
    """Return every field of a dataclass that is part of keys: all but those with metadata ``in_key=False``."""
    return {
        field.name: getattr(value, field.name)
        for field in dataclasses.fields(value)
        if field.metadata.get("in_key", True)
    }


def digest(value: Any) -> str:
    """Return the SHA-256 of the stable text of ``value``, in hexadecimal."""
    return hashlib.sha256(stable_text(value).encode()).hexdigest()


def _by_uuid(value: Any) -> str:
    uuid = getattr(value, "uuid", None)
    found = uuid() if callable(uuid) and not isinstance(value, type) else None
    if not found:
        raise UnstableValueError(
            f"{value!r} of type {type(value).__qualname__} means nothing in another process: use numbers, strings, "
            f"containers or dataclasses of them, or give its class a uuid() method"
        )
    return f"{type(value).__qualname__}:uuid={stable_text(found)}"


def _joined(brackets: str, parts: Any) -> str:
    return f"{brackets[0]}{','.join(parts)}{brackets[1]}"
