"""Who wants to see graphs and partitions themselves, not only what the observer keeps of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any


class CompileSpy:
    """Sees what the observer sees, at the moment it happens; put one into ``Observer.spies``.

    Both methods return a context manager that is entered before the compile, while the settings of the compile hold,
    and gives a function that is called with what the compile returned.
    """

    def compiling_graph(self, kind: str, gm: Any) -> AbstractContextManager[Callable[[Any], None]]:
        """See a compiler of the backend get a graph of AOTAutograd's, which it may rewrite."""
        return contextlib.nullcontext(_ignore)

    def compiling_region(self, gm: Any, inputs: Sequence[Any]) -> AbstractContextManager[Callable[[Any], None]]:
        """See a subgraph handed to Inductor on its own; Inductor may consume it."""
        return contextlib.nullcontext(_ignore)


def _ignore(result: Any) -> None:
    """Do nothing with what a compile returned."""


def spying_graph(spies: Sequence[CompileSpy], kind: str, gm: Any, compile_graph: Callable[[], Any]) -> Any:
    """Return what ``compile_graph`` returns, seen by all ``spies``."""
    return _spying([spy.compiling_graph(kind, gm) for spy in spies], compile_graph)


def spying_region(
    spies: Sequence[CompileSpy], gm: Any, inputs: Sequence[Any], compile_region: Callable[[], Any]
) -> Any:
    """Return what ``compile_region`` returns, seen by all ``spies``."""
    return _spying([spy.compiling_region(gm, inputs) for spy in spies], compile_region)


def _spying(
    contexts: Sequence[AbstractContextManager[Callable[[Any], None]]], compile_something: Callable[[], Any]
) -> Any:
    with contextlib.ExitStack() as stack:
        tell = [stack.enter_context(context) for context in contexts]
        result = compile_something()
        for told in tell:
            told(result)
    return result
