"""The table of kinds, and what most of them need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kind:
    """One thing that a test may leave changed.

    Attributes:
        name: what it is called here.
        leak: changes it.
        look: returns something that compares equal exactly while it is not changed.
    """

    name: str
    leak: Callable[[], object]
    look: Callable[[], Any]


KINDS: dict[str, Kind] = {}


def kind(name: str, look: Callable[[], Any]) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """Add what the decorated function leaves changed to the table."""

    def add(leak: Callable[[], object]) -> Callable[[], object]:
        assert name not in KINDS
        KINDS[name] = Kind(name, leak, look)
        return leak

    return add


#: What is left behind and kept alive, as a global variable of a test's module would.
KEPT: list[Any] = []


def enter(context: Any) -> Any:
    """Enter a context, and never leave it."""
    KEPT.append(context)
    return context.__enter__()


def of(holder: Any, attribute: str) -> Callable[[], int]:
    """Return a look at which object ``attribute`` of ``holder`` is."""
    return lambda: id(getattr(holder, attribute))


def other(*args, **kwargs):
    raise AssertionError("another test's function")
