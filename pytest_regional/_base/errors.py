"""The bases of all errors and warnings of this package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class RegionalError(Exception):
    """Base of the errors of this package; most have a second base, such as ``AssertionError`` or ``ValueError``."""


class RegionalValueError(RegionalError, ValueError):
    """An argument, an option or a setting cannot be used; the message names those that can."""


class RegionalRuntimeError(RegionalError, RuntimeError):
    """Something that was asked for cannot be done now; the message says why and what to change."""


class OutOfTimeError(RegionalError):
    """A search or a kernel took the time that it may take."""


class RegionalWarning(UserWarning):
    """Base of the warnings of this package."""


class RegionalLeakWarning(RegionalWarning):
    """A test left process-wide state changed; it was put back."""


class CampaignError(RegionalError, AssertionError):
    """What fails a fuzz test once its campaign is over.

    Attributes:
        code: by the name of a new finding, the code that was generated for its program.
    """

    def __init__(self, message: str, code: Mapping[str, Sequence[Any]] | None = None) -> None:
        super().__init__(message)
        self.code = code or {}
