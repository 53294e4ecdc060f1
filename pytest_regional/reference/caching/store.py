"""Stores of whole results: on this machine first, then shared ones."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from pytest_regional._torch import caches as private
from pytest_regional._torch.caches import inductor_cache_dir
from pytest_regional.reference.caching.container import (
    KIND,
    ArtifactError,
    ArtifactNotFoundError,
    CacheWarning,
    EntryStore,
    require_key,
    seal,
    unseal,
    warn,
    warn_once,
)
from pytest_regional.reference.caching.files import read_private, require_private, write_atomically
from pytest_regional.reference.caching.remote import open_remote_store

_SUFFIX = ".artifact"


class EntryFiles:
    """Entries as files, in one directory per key; read only.

    Processes and threads may read and save concurrently. Errors here never stop a compile: an unusable entry is a miss
    with one warning.
    """

    def candidates(self, key: str) -> Iterator[bytes]:
        """Yield the payloads saved under ``key``, in the order of their file names.

        An entry that is broken, or from another machine, is removed with one warning, so that the next save replaces
        it. An unreadable or non-private directory has no entries, and one warning.
        """
        require_key(key)
        for path in self._paths(key):
            payload = self._payload(key, path)
            if payload is not None:
                yield payload

    def _folder_of(self, key: str) -> Path:
        raise NotImplementedError

    def _is_entry(self, path: Path) -> bool:
        raise NotImplementedError

    def _paths(self, key: str) -> list[Path]:
        folder = self._folder_of(key)
        try:
            if not folder.is_dir():
                return []
            require_private(folder)
            return sorted(path for path in folder.iterdir() if self._is_entry(path))
        except (OSError, ArtifactError) as error:
            warn_once(f"No compiled results are loaded from {folder.parent}: {error}")
            return []

    def _payload(self, key: str, path: Path) -> bytes | None:
        try:
            return _read(key, path, path)
        except ArtifactNotFoundError:
            return None
        except ArtifactError as error:
            return self._remove(key, path, error)
        except OSError as error:
            warn_once(f"A compiled result is not loaded: {error}", about=f"load {path} {error.errno}")
            return None

    def _remove(self, key: str, path: Path, why: ArtifactError) -> bytes | None:
        """Remove the broken entry at ``path``; if a writer has replaced it meanwhile, keep and return the new one."""
        aside = path.with_name(f"{path.name}.{secrets.token_hex(8)}.aside")
        try:
            os.rename(path, aside)
        except FileNotFoundError:
            # Another process has removed it, and warned.
            return None
        except OSError as stuck:
            warn_once(f"A compiled result is not used, and cannot be removed ({stuck}): {why}", about=f"remove {path}")
            return None
        try:
            payload = _read(key, aside, path)
            _put_back(aside, path)
        except (ArtifactError, OSError):
            warn(f"A compiled result was removed, and is compiled again: {why}")
            return None
        else:
            return payload
        finally:
            _discard(aside)


class LocalStore(EntryFiles):
    """Entries as files: ``folder/KEY/DIGEST.artifact``, named after their contents, so that equal ones are one file.

    A save that fails is a ``CacheWarning`` and no error, as with reads.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, key: str, payload: bytes) -> bool:
        """Save ``payload`` under ``key`` and return whether that succeeded; one warning if not."""
        require_key(key)
        folder, scratch = self.folder / key, self.folder / "tmp"
        try:
            require_private(folder)
            require_private(scratch)
            sealed = seal(payload, kind=KIND, key=key)
            write_atomically(folder / _file_name(payload), sealed, scratch=scratch)
        except (OSError, ArtifactError) as error:
            # The message may name a temporary file, so it does not identify the failure.
            same = f"save {self.folder} {type(error).__name__} {getattr(error, 'errno', '')}"
            warn_once(f"Compiled results are not saved in {self.folder}: {error}", about=same)
            return False
        return True

    def keys(self) -> tuple[str, ...]:
        """Return the keys with entries, sorted."""
        return tuple(sorted({path.parent.name for path in self.folder.glob(f"*/*{_SUFFIX}")}))

    def _folder_of(self, key: str) -> Path:
        return self.folder / key

    def _is_entry(self, path: Path) -> bool:
        return path.suffix == _SUFFIX


def _read(key: str, path: Path, name: Path) -> bytes:
    return unseal(read_private(path), kind=KIND, key=key, where=str(name))


def _put_back(aside: Path, path: Path) -> None:
    try:
        os.link(aside, path)
    except FileExistsError:
        # An equal one, and newer: the name is the digest of the contents.
        return


def _discard(aside: Path) -> None:
    with contextlib.suppress(OSError):
        # Only its owner empties a directory in an entry's place.
        aside.unlink() if aside.is_symlink() or not aside.is_dir() else aside.rmdir()


def _file_name(payload: bytes) -> str:
    return f"{hashlib.sha256(payload).hexdigest()[:40]}{_SUFFIX}"


_PREFIX = "regional-"


def record(key: str, payload: bytes) -> None:
    """Add ``payload``, an entry that was saved or used, to ``torch.compiler.save_cache_artifacts()``."""
    require_key(key)
    private.record_portable(_PREFIX + key, seal(payload, kind=KIND, key=key))


class LoadedEntries(EntryFiles):
    """Entries that ``torch.compiler.load_cache_artifacts`` wrote to disk; they are checked like any others."""

    def _folder_of(self, key: str) -> Path:
        return private.portable_folder(_PREFIX + key)

    def _is_entry(self, path: Path) -> bool:
        # Files that PyTorch is still writing start with a dot; those being removed end with a suffix.
        return "." not in path.name


__all__ = ["CacheWarning", "EntryStore", "LocalStore", "Store", "default_folder", "open_store"]


class Store:
    """Local entries first, then those of portable artifacts, then remote ones, which are also saved locally.

    Args:
        local: entries on this machine.
        remote: shared entries, if any.
        loaded: entries from ``torch.compiler.load_cache_artifacts``, if used.
    """

    def __init__(
        self, local: EntryStore, remote: EntryStore | None = None, loaded: LoadedEntries | None = None
    ) -> None:
        self.local = local
        self.remote = remote
        self.loaded = loaded

    def candidates(self, key: str) -> Iterator[bytes]:
        """Yield the payloads saved under ``key``; the remote store is only read if no local one is accepted."""
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
        """Save ``payload`` on this machine and in the remote store, and return whether one of them succeeded."""
        kept = self.local.save(key, payload)
        return (self.remote is not None and self.remote.save(key, payload)) or kept


def default_folder() -> Path:
    """Return ``regional`` below Inductor's current cache directory (``TORCHINDUCTOR_CACHE_DIR``)."""
    return inductor_cache_dir() / "regional"


def open_store() -> Store:
    """Return the store that the environment and configuration describe now."""
    return Store(LocalStore(default_folder()), open_remote_store(), LoadedEntries())


def _digest(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest()
