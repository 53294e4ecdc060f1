"""What can go wrong when a whole graph is compiled by Inductor, and what is worth a warning when nothing does."""

from __future__ import annotations

from pytest_regional._errors import RegionalError, RegionalWarning


class FullInductorError(RegionalError, RuntimeError):
    """Inductor did not compile a graph; what it said is chained.

    Attributes:
        graph: the kind of graph.
        node: the name of the node it failed on, where that is known.
    """

    def __init__(self, message: str, graph: str | None = None, node: str | None = None) -> None:
        self.graph = graph
        self.node = node
        super().__init__(message)


class NotFunctionalError(FullInductorError):
    """A graph writes to a value in the middle, which Inductor's graph passes do not expect."""


class CollectiveFormError(FullInductorError):
    """A collective stands in a form that Inductor knows nothing of and that cannot be rewritten."""


class MissingValueError(FullInductorError):
    """A node has no fake value, so nothing can be decomposed or compiled."""


class NumericsWarning(RegionalWarning):
    """A program was compiled by Inductor as a whole: its results differ from eager in the last bits."""
