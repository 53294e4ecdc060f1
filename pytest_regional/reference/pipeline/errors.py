"""What can go wrong around a list of graph passes: each message says which pass, on which graph, and what to do."""

from __future__ import annotations


class PipelineError(Exception):
    """Base of all errors of the pipeline."""


class InvalidPassError(PipelineError, TypeError):
    """Something that is no graph pass, or one whose declarations are not understood."""


class PassOrderError(PipelineError, ValueError):
    """The passes cannot run in any order that all their declarations allow.

    Attributes:
        passes: the names of the passes concerned.
    """

    def __init__(self, message: str, passes: tuple[str, ...] = ()) -> None:
        self.passes = passes
        super().__init__(message)


class PassNameWarning(UserWarning):
    """A pass is declared to run after or before a name that no pass has, though one nearly has it."""


class UnknownPassError(PipelineError, LookupError):
    """A name, given to disable a pass or to choose one, that no pass has."""


class UnknownGraphError(PipelineError, ValueError):
    """A kind of graph that there is not."""


class PassUuidError(PipelineError, RuntimeError):
    """A ``uuid()`` that no cache could use."""


class PassFailedError(PipelineError, RuntimeError):
    """A pass raised, left an invalid graph, or returned what nobody can use; the cause is chained, if there is one.

    Attributes:
        pass_name: the pass.
        graph: the kind of graph that it ran on.
    """

    def __init__(self, message: str, pass_name: str, graph: str) -> None:
        self.pass_name = pass_name
        self.graph = graph
        super().__init__(message)


class CaptureError(PipelineError, RuntimeError):
    """A model, or its inputs, of which no graph can be made."""


class PartitionError(PipelineError, RuntimeError):
    """A joint graph that cannot be split, or a partitioner that does not split it."""


class CaptureWarning(UserWarning):
    """A model does something that its graph does not."""
