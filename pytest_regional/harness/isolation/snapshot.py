"""The state of the process before a test, and how the test changed it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_regional._torch import MissingTorchSymbolError
from pytest_regional.harness.isolation import interpreter, pytorch
from pytest_regional.harness.isolation.watched import Leak, Watched

#: All watched state, in the order of restoring.
WATCHED: tuple[Watched, ...] = (
    *interpreter.FIRST,
    *pytorch.MODES,
    *pytorch.CONFIGURATION,
    *interpreter.INTERPRETER,
    *pytorch.SETTINGS,
    *pytorch.OTHERS,
    *pytorch.LAST,
)

#: State that a backend must restore before it returns from a compile.
WATCHED_WHILE_COMPILING: tuple[Watched, ...] = (
    *pytorch.MODES,
    *pytorch.CONFIGURATION,
    interpreter.ENVIRONMENT,
    interpreter.WORKING_DIRECTORY,
    *pytorch.SETTINGS,
)


@dataclass(frozen=True)
class Snapshot:
    """Some of the state of the process at one moment."""

    watched: Sequence[Watched]
    values: Sequence[Any] = field(repr=False)  # the environment is among them

    @staticmethod
    def take(*, while_compiling: bool = False) -> Snapshot:
        """Read the current state; with ``while_compiling`` only the part that is quick to read."""
        watched, _ = readable(while_compiling=while_compiling)
        return Snapshot(watched, [each.read() for each in watched])

    def leaks(self) -> tuple[Leak, ...]:
        """Return the differences between now and this snapshot."""
        pairs = zip(self.watched, self.values, strict=True)
        return tuple(leak for each, before in pairs for leak in each.differences(before))

    def restore(self) -> tuple[Leak, ...]:
        """Restore this snapshot's state; return what was changed, restored or not."""
        pairs = zip(self.watched, self.values, strict=True)
        leaks = [leak for each, before in pairs for leak in _restore(each, before)]
        return tuple(leak for leak in leaks if leak.unrestorable or not pytorch.is_pytorchs_doing(leak))


@functools.cache
def readable(*, while_compiling: bool) -> tuple[Sequence[Watched], Sequence[Watched]]:
    """Return the rows that this torch supports, and those that it does not.

    If a private name moves, only its row is lost, and not every test; ``tests/attacks/test_leaks.py`` fails then.
    """
    rows = WATCHED_WHILE_COMPILING if while_compiling else WATCHED
    missing = [each for each in rows if _is_missing(each)]
    return [each for each in rows if each not in missing], missing


def _is_missing(watched: Watched) -> bool:
    try:
        watched.read()
    except MissingTorchSymbolError:
        return True
    return False


def _restore(watched: Watched, before: Any) -> list[Leak]:
    leaks = list(watched.differences(before))
    if not leaks:
        return []
    try:
        watched.restore(before)
    except Exception as error:  # noqa: BLE001 - whatever it is, the process is not what it was
        why = f"{type(error).__name__}: {error}"
        return [replace(leak, after=f"{leak.after!r} ({why})", restored=False, unrestorable=True) for leak in leaks]
    still = {leak.name for leak in watched.differences(before)}
    return [replace(leak, restored=False, unrestorable=True) if leak.name in still else leak for leak in leaks]


__all__ = ["WATCHED", "WATCHED_WHILE_COMPILING", "Snapshot", "readable"]
