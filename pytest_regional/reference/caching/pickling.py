"""Objects as bytes, and which part of an object has none."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

#: What ``pickle``, and reducers of torch and of users, raise for an object that has no bytes.
PICKLING_ERRORS = (pickle.PicklingError, AttributeError, TypeError, ValueError, RuntimeError)


class UnsavableGraphError(Exception):
    """What a graph was compiled to holds something that cannot be stored; the message says what."""


def dumped(value: Any, parts: Iterable[tuple[str, Any]], dump: Callable[[Any], bytes] = pickle.dumps) -> bytes:
    """Return ``dump(value)``.

    Args:
        value: what is to be bytes.
        parts: what it consists of, each with a name for messages.
        dump: returns the bytes of the whole or of a part.

    Raises:
        UnsavableGraphError: a part has no bytes; the message names it.
        Exception: what ``dump`` raised, where every part alone has bytes: then nobody's value is at fault.
    """
    try:
        return dump(value)
    except PICKLING_ERRORS:
        for name, part in parts:
            _require_bytes(name, part, dump)
        raise


def _require_bytes(name: str, part: Any, dump: Callable[[Any], bytes]) -> None:
    try:
        dump(part)
    except PICKLING_ERRORS as error:
        raise UnsavableGraphError(f"{name} cannot be pickled: {type(error).__name__}: {error}") from error
