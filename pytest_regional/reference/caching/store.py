"""Where whole results are looked for: on this machine first, then on what machines share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from pytest_regional._torch import caches as private
from pytest_regional._torch.caches import inductor_cache_dir
from pytest_regional.reference.caching.container import KIND, CacheWarning, EntryStore, require_key, seal
from pytest_regional.reference.caching.local import EntryFiles, LocalStore
from pytest_regional.reference.caching.remote import open_remote_store

_PREFIX = "regional-"


def record(key: str, payload: bytes) -> None:
    """Have ``torch.compiler.save_cache_artifacts()`` return ``payload``, an entry that was saved or used, as well."""
    require_key(key)
    private.record_portable(_PREFIX + key, seal(payload, kind=KIND, key=key))


class LoadedEntries(EntryFiles):
    """Entries that ``torch.compiler.load_cache_artifacts`` has put on disk; they are checked as any others are."""

    def _folder_of(self, key: str) -> Path:
        return private.portable_folder(_PREFIX + key)

    def _is_entry(self, path: Path) -> bool:
        # Files that PyTorch is still writing start with a dot; those that are being removed end with a suffix.
        return "." not in path.name


__all__ = ["CacheWarning", "EntryStore", "LocalStore", "Store", "default_folder", "open_store"]


class Store:
    """Local entries first, then those of portable artifacts, then remote ones, which are kept locally from then on.

    Args:
        local: what is saved on this machine.
        remote: what machines share, if anything.
        loaded: what ``torch.compiler.load_cache_artifacts`` has brought, if that is looked at.
    """

    def __init__(
        self, local: EntryStore, remote: EntryStore | None = None, loaded: LoadedEntries | None = None
    ) -> None:
        self.local = local
        self.remote = remote
        self.loaded = loaded

    def candidates(self, key: str) -> Iterator[bytes]:
        """Yield the payloads saved under ``key``; the remote store is asked only by who did not take a local one."""
        seen = set()
        for payload in self._on_this_machine(key):
            digest = _digest(payload)
            if digest not in seen:
                seen.add(digest)
                yield payload
        for payload in self.remote.candidates(key) if self.remote else ():
            if _digest(payload) not in seen:
                self.local.save(key, payload)
                yield payload

    def _on_this_machine(self, key: str) -> Iterator[bytes]:
        yield from self.local.candidates(key)
        if self.loaded:
            yield from self.loaded.candidates(key)

    def save(self, key: str, payload: bytes) -> bool:
        """Keep ``payload`` on this machine and in the remote store, and say whether one of them has it."""
        kept = self.local.save(key, payload)
        return (self.remote is not None and self.remote.save(key, payload)) or kept


def default_folder() -> Path:
    """Return ``regional`` below Inductor's cache folder, wherever that is now (``TORCHINDUCTOR_CACHE_DIR``)."""
    return inductor_cache_dir() / "regional"


def open_store() -> Store:
    """Return the store that environment and configuration describe at this moment."""
    return Store(LocalStore(default_folder()), open_remote_store(), LoadedEntries())


def _digest(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest()
