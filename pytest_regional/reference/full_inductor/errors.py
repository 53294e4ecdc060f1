"""Errors and warnings of compiling a whole graph with Inductor."""

from __future__ import annotations

from pytest_regional._base.errors import RegionalError, RegionalWarning


class FullInductorError(RegionalError, RuntimeError):
    """Inductor did not compile a graph; its error is chained.

    Attributes:
        graph: the kind of graph.
        node: the name of the node it failed on, if known.
    """

    def __init__(self, message: str, graph: str | None = None, node: str | None = None) -> None:
        self.graph = graph
        self.node = node
        super().__init__(message)


class MissingValueError(FullInductorError):
    """A node has no fake value, so nothing can be decomposed or compiled."""


class NumericsWarning(RegionalWarning):
    """A program was compiled by Inductor as a whole: its results differ from eager in the last bits."""
