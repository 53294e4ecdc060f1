"""Values of tests as data that any process can receive and any file can hold.

A text with half of a surrogate pair cannot be encoded as UTF-8, objects of a test's classes cannot be sent, and texts
of 100 MB cannot be read: each becomes a text that can.
"""

from __future__ import annotations

from typing import Any

from pytest_regional._text import encodable

#: Characters of one text that are kept: what began it, and what is at its end.
MOST_CHARACTERS = 1_000_000

#: Containers in containers; deeper ones may hold themselves.
_DEPTH = 50


def shortened(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return ``text``, the middle of it left out where it has more than ``most`` characters."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters left out by pytest-regional]\n{text[-half:]}"


def text_of(value: object) -> str:
    """Return ``str(value)``, whatever that raises or returns."""
    try:
        return encodable(shortened(str(value)))
    except Exception as error:  # noqa: BLE001 - code of a test's own class, which is no reason to lose the report
        return f"<{type(value).__name__} whose __str__ raises {type(error).__name__}>"


def plain(value: Any, _depth: int = 0) -> Any:
    """Return ``value`` with all texts encodable and shortened, and texts for what is no plain data."""
    kind = type(value)
    if kind is str:
        return encodable(shortened(value))
    if value is None or kind in (bool, int, float, complex, bytes):
        return value
    if _depth < _DEPTH:
        if kind is dict:
            return {plain(key, _depth + 1): plain(one, _depth + 1) for key, one in value.items()}
        if kind in (list, tuple, set, frozenset):
            return kind(plain(one, _depth + 1) for one in value)
    return _plain_base(value)


def _plain_base(value: Any) -> Any:
    """Return a number of a subclass, such as NumPy's, as one of Python's; a text for all else."""
    if isinstance(value, int):
        return int.__pos__(value)
    if isinstance(value, float):
        return float.__pos__(value)
    return text_of(value)
