"""Seeds: the default, the largest, and the one of a test. Imports no torch, so that options are read without it."""

from __future__ import annotations

import hashlib

DEFAULT_SEED = 20251006

#: What crosses to workers of pytest-xdist, and every generator takes.
MOST_SEED = 2**63 - 1


def seed_for(test_id: str, seed: int = DEFAULT_SEED) -> int:
    """Return a seed that depends on ``seed`` and the test's id alone: the same in any order and on any worker."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{test_id}".encode()).digest()[:4], "big")
