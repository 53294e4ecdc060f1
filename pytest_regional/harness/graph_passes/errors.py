"""What can go wrong with a pass under test, or with a question about its graphs."""

from __future__ import annotations


class GraphPassError(RuntimeError):
    """A pass under test, or what it was asked to run on, cannot be used; the message says why and what to do."""


class PassFormError(GraphPassError, TypeError):
    """Something that is no graph pass, or none for this stage."""


class InvalidGraphError(GraphPassError):
    """A pass left a graph that is none: a node used before it is made, a cycle, an attribute that does not exist."""


class UnknownStageError(GraphPassError, ValueError):
    """A stage that does not exist."""


class NoUuidError(GraphPassError):
    """A question about the uuid of a pass that has none."""


class UnknownOpError(GraphPassError, LookupError):
    """An operator that neither graph holds and torch does not know: the assertion could not have failed."""


class WhichGraphError(GraphPassError, LookupError):
    """No graph, or more than one, answers to what was asked for."""


class PassNeverRanError(AssertionError):
    """The pass was handed to the backend, and no graph reached it: whatever is asserted would be vacuous."""


class GraphAssertionError(AssertionError):
    """An assertion about the graphs before and after a pass does not hold."""
