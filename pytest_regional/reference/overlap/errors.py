"""What can be wrong with a request to overlap."""

from __future__ import annotations


class OverlapError(ValueError):
    """A bound that means nothing, or a collective whose size is not known; the message says which and what to do."""
