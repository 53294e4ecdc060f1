"""What this process does at the moment that takes seconds and is not a test's own: shown where a terminal is silent."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

_WAITS: list[tuple[str, float]] = []


@contextlib.contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Say, while the block runs, that the process does ``what``: words such as "importing torch"."""
    wait = what, time.monotonic()
    _WAITS.append(wait)
    try:
        yield
    finally:
        _WAITS.remove(wait)


def longer_than(seconds: float) -> str:
    """Return what the process has been doing for more than ``seconds``; empty where there is nothing."""
    now = time.monotonic()
    return next((what for what, began in reversed(_WAITS) if now - began > seconds), "")
