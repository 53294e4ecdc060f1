"""What can go wrong when generated code is read and judged."""

from __future__ import annotations


class CodeAssertionError(AssertionError):
    """Generated code is not as asserted; the message lists its events with the offending lines marked."""


class UnreadableCodeError(ValueError):
    """Generated code that is no Python wrapper of a known shape."""


class NoGeneratedCodeError(LookupError):
    """There is no generated code to look at, or none of the graph or region that was named."""


class NoSuchOpError(LookupError):
    """A pattern that names no operator and no buffer of the generated code; the message lists what is there."""


class UnknownOriginError(LookupError):
    """Code whose operators are not known, so that nothing can be said about them."""


class AmbiguousCodeError(LookupError):
    """Operators that stand in different graphs or in several pieces of code, so that the question has no one answer."""


class UnknownSizeError(LookupError):
    """Buffers whose size in bytes cannot be computed from the code."""
