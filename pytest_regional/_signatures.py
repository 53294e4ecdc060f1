"""Signatures of bytes that are shared with others: HMAC-SHA256 over a purpose, and fields that cannot be shifted."""

from __future__ import annotations

import hashlib
import hmac

#: Bytes of a signature.
LENGTH = hashlib.sha256().digest_size


def signature(secret: bytes, purpose: bytes, *fields: bytes) -> bytes:
    """Return the signature of ``fields``, in this order.

    Args:
        secret: whoever has it can sign.
        purpose: what the fields are; a signature for one purpose is none for another.
        fields: what is signed.
    """
    # Lengths first, so that bytes cannot move from one field to the next.
    start = b" ".join([purpose, *(b"%d" % len(field) for field in fields), b""])
    made = hmac.new(secret, start, hashlib.sha256)
    for field in fields:
        made.update(field)
    return made.digest()


def is_signed(given: bytes, secret: bytes, purpose: bytes, *fields: bytes) -> bool:
    """Return whether ``given`` is the signature of ``fields``; the time taken says nothing of the right one."""
    return hmac.compare_digest(given, signature(secret, purpose, *fields))
