"""Passes by name, as the command line gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pytest_regional._text import unknown_name
from pytest_regional.backends import registry
from pytest_regional.command_line.targets import UsageError, find


def known_passes() -> dict[str, Callable[[], Any]]:
    """Return the passes that need nothing said but their name."""
    _, passes = registry.full_graph_modules()
    by_class = (passes.Canonicalization, passes.DeadCodeElimination, passes.OverlapCollectives)
    terminal = {name: registry.resolve(backend).graph_pass for name, backend in _TERMINAL.items()}
    return {cls.name: cls for cls in by_class} | {name: made for name, made in terminal.items() if made is not None}


_TERMINAL = {"regional_inductor": "reference", "full_inductor": "inductor"}


def passes_of(names: str) -> Iterator[Any]:
    """Yield the passes that a comma-separated list names: known ones, or ``module:attribute``.

    Raises:
        UsageError: a name that there is not.
    """
    known = known_passes()
    for name in filter(None, (part.strip() for part in names.split(","))):
        if name in known:
            yield known[name]()
        elif ":" in name:
            yield from _several(find(name))
        else:
            raise UsageError(f"{unknown_name('pass', name, known)} Others are named module:attribute.")


def _several(found: Any) -> Iterator[Any]:
    """Take one pass, or an iterable of passes, such as a list or a pipeline."""
    if isinstance(found, Iterable) and not isinstance(found, type):
        yield from found
    else:
        yield found() if isinstance(found, type) else found
