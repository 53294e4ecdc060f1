"""What may go wrong with a proof."""

from __future__ import annotations

from pytest_regional._errors import RegionalError


class NotVerifiableError(RegionalError):
    """Part of a kernel, or of the code that launches it, is outside of what is proved; the message names it."""


class UndecidedError(NotVerifiableError):
    """z3 does not know, or not in time; with more time it might."""
