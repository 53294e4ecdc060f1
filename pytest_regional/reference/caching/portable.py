"""Entries in PyTorch's portable artifacts: ``torch.compiler.save_cache_artifacts`` and ``load_cache_artifacts``.

They travel as entries of AOTAutograd's cache, under keys that it never has itself, each in its envelope. So they can be
loaded in any process with torch, before this package is imported or where it is not installed; PyTorch writes them
below its own cache folder, and the next lookup of the backend finds and checks them there.
"""

from __future__ import annotations

from pathlib import Path

from pytest_regional._torch import portable_artifacts as private
from pytest_regional.reference.caching.entries import KIND, require_key
from pytest_regional.reference.caching.envelope import seal
from pytest_regional.reference.caching.local import EntryFiles

_PREFIX = "regional-"


def record(key: str, payload: bytes) -> None:
    """Have ``torch.compiler.save_cache_artifacts()`` return ``payload``, an entry that was saved or used, as well."""
    require_key(key)
    private.record(_PREFIX + key, seal(payload, kind=KIND, key=key))


class LoadedEntries(EntryFiles):
    """Entries that ``torch.compiler.load_cache_artifacts`` has put on disk; they are checked as any others are."""

    def _folder_of(self, key: str) -> Path:
        return private.folder_of_loaded(_PREFIX + key)

    def _is_entry(self, path: Path) -> bool:
        # Files that PyTorch is still writing start with a dot; those that are being removed end with a suffix.
        return "." not in path.name
