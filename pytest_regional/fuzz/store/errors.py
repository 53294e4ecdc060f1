"""What a store raises and warns of."""

from __future__ import annotations

from pytest_regional._errors import RegionalError, RegionalWarning


class StoreError(RegionalError):
    """A store that cannot be used, or not any more; the message says where, why, and what to do."""


class UrlError(StoreError, ValueError):
    """What names a store names none; the message shows no user and no password."""


class EntryError(RegionalError, ValueError):
    """What is to be written, or a name, that no store holds: a mistake of the caller."""


class StoreWarning(RegionalWarning):
    """An entry was skipped, or the server is waited for."""
