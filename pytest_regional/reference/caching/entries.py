"""What stores of entries have in common: keys, and the two things that one can do with them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol

KIND = "outer cache entry"


class EntryStore(Protocol):
    """What keeps entries: payloads by key.

    A key can have several, one for each set of guards that dynamic shapes led to; who looks one up tries them in turn.
    """

    def candidates(self, key: str) -> Iterator[bytes]:
        """Yield the payloads saved under ``key``."""

    def save(self, key: str, payload: bytes) -> bool:
        """Keep ``payload`` under ``key`` if that is possible, and say whether it was."""


def require_key(key: str) -> None:
    """Refuse a key that is no lower-case hexadecimal number: it becomes the name of a folder.

    Raises:
        ValueError: with the key.
    """
    if not re.fullmatch(r"[0-9a-f]{1,128}", key):
        raise ValueError(f"{key!r} is no cache key: 1 to 128 digits from 0123456789abcdef, as a hash's hexdigest().")
