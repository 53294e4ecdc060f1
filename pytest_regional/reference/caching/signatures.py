"""Entries from a network: who may have written them.

An entry is a pickle, so whoever can write one runs code where it is loaded. With a secret, each carries an
HMAC-SHA256 over its key and all its bytes: it can neither be made nor moved to another key by who lacks the secret.
"""

from __future__ import annotations

import hashlib
import hmac

from pytest_regional.reference.caching.envelope import MAGIC
from pytest_regional.reference.caching.errors import UnauthenticatedEntryError

_PURPOSE = b"pytest-regional outer cache entry 1"
_LENGTH = hashlib.sha256().digest_size


def sign(sealed: bytes, *, key: str, secret: bytes) -> bytes:
    """Return ``sealed`` with its signature in front; unchanged with an empty ``secret``."""
    return _signature(sealed, key, secret) + sealed if secret else sealed


def verified(signed: bytes, *, key: str, secret: bytes, where: str) -> bytes:
    """Return what was signed. An empty ``secret`` takes anything, signed or not.

    Raises:
        UnauthenticatedEntryError: it is not signed with ``secret`` for ``key``.
    """
    if not secret:
        return signed if signed.startswith(MAGIC) else signed[_LENGTH:]
    signature, sealed = signed[:_LENGTH], signed[_LENGTH:]
    if not hmac.compare_digest(signature, _signature(sealed, key, secret)):
        raise UnauthenticatedEntryError(
            f"{where} is not signed with this process's secret: forged, moved from another key, damaged, or saved "
            f"where PYTEST_REGIONAL_CACHE_SECRET is another. Set the same secret everywhere."
        )
    return sealed


def _signature(sealed: bytes, key: str, secret: bytes) -> bytes:
    # Lengths first, so that no bytes can pass from the key to the contents.
    start = b"%s %d %d " % (_PURPOSE, len(key), len(sealed))
    signature = hmac.new(secret, start + key.encode(), hashlib.sha256)
    signature.update(sealed)
    return signature.digest()
