"""Small helpers for messages: the nearest valid name, lists a person can read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown_name(what: str, name: object, valid: Iterable[str]) -> str:
    """Return a sentence saying that ``name`` is no ``what``, the nearest valid name, and all valid ones."""
    names = sorted(valid)
    folded = {valid_name.lower(): valid_name for valid_name in reversed(names)}
    near = difflib.get_close_matches(str(name).lower(), folded, n=1)
    hint = f" Did you mean {folded[near[0]]!r}?" if near else ""
    return f"unknown {what} {name!r}.{hint} Known: {', '.join(names)}."


def plural(count: int, noun: str) -> str:
    """Return ``1 region`` or ``3 regions``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
