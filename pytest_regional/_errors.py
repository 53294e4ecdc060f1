"""The bases of all errors and warnings of this package."""

from __future__ import annotations


class RegionalError(Exception):
    """Base of the errors of this package; most have a second base, such as ``AssertionError`` or ``ValueError``."""


class RegionalWarning(UserWarning):
    """Base of the warnings of this package."""


class RegionalLeakWarning(RegionalWarning):
    """A test left process-wide state changed; it was put back."""
