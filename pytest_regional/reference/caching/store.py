"""Stores of whole results: local files, PyTorch's portable artifacts, and a Redis server with signed entries."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import importlib.util
import os
import secrets
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pytest_regional._base.files import remove_abandoned, write_whole
from pytest_regional._base.text import masked, shown, without_secrets_of
from pytest_regional._torch import caches as private
from pytest_regional._torch import config
from pytest_regional._torch.caches import inductor_cache_dir
from pytest_regional.reference.caching.container import (
    KIND,
    MAGIC,
    ArtifactError,
    ArtifactNotFoundError,
    CacheWarning,
    read_private,
    require_key,
    require_private,
    seal,
    unseal,
    warn_once,
)

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
            with contextlib.suppress(FileExistsError):  # an equal one, and newer: the name is the contents' digest
                os.link(aside, path)
        except (ArtifactError, OSError):
            message = f"A compiled result was removed, and is compiled again: {why}"
            warnings.warn(message, CacheWarning, stacklevel=2)
            return None
        else:
            return payload
        finally:
            with contextlib.suppress(OSError):
                # Only its owner empties a directory in an entry's place.
                aside.unlink() if aside.is_symlink() or not aside.is_dir() else aside.rmdir()


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
            remove_abandoned(scratch)
            name = f"{hashlib.sha256(payload).hexdigest()[:40]}{_SUFFIX}"
            write_whole(folder / name, sealed, scratch=scratch, mode=0o600, sync=True)
        except (OSError, ArtifactError) as error:
            # The message may name a temporary file, so it does not identify the failure.
            same = f"save {self.folder} {type(error).__name__} {getattr(error, 'errno', '')}"
            warn_once(f"Compiled results are not saved in {self.folder}: {error}", about=same)
            return False
        return True

    def _folder_of(self, key: str) -> Path:
        return self.folder / key

    def _is_entry(self, path: Path) -> bool:
        return path.suffix == _SUFFIX


def _read(key: str, path: Path, name: Path) -> bytes:
    return unseal(read_private(path), kind=KIND, key=key, where=str(name))


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


class Store:
    """Local entries first, then those of portable artifacts, then remote ones, which are also saved locally.

    Args:
        local: entries on this machine.
        remote: shared entries, if any.
        loaded: entries from ``torch.compiler.load_cache_artifacts``, if used.
    """

    def __init__(
        self, local: LocalStore, remote: RemoteStore | None = None, loaded: LoadedEntries | None = None
    ) -> None:
        self.local = local
        self.remote = remote
        self.loaded = loaded

    def candidates(self, key: str) -> Iterator[bytes]:
        """Yield the payloads saved under ``key``; the remote store is only read if no local one is accepted.

        There can be several, one per set of guards from dynamic shapes; a lookup tries them in turn.
        """
        seen = set()
        for entries in (self.local, self.loaded):
            for payload in entries.candidates(key) if entries else ():
                digest = hashlib.sha256(payload).digest()  # whole payloads would stay in memory
                if digest not in seen:
                    seen.add(digest)
                    yield payload
        for payload in self.remote.candidates(key) if self.remote else ():
            if hashlib.sha256(payload).digest() not in seen:
                self.local.save(key, payload)
                yield payload

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


_PURPOSE = b"pytest-regional outer cache entry 1"


#: Seconds for a connection, and for one answer.
TIMEOUT_SECONDS = 2.0
#: Seconds for which a server that failed is left alone.
PAUSE_SECONDS = 60.0
PLACES = 8
#: Number of characters of a server's or address's text in messages.
_SHOWN = 400
URL = "TORCHINDUCTOR_REDIS_URL"
SECRET = "PYTEST_REGIONAL_CACHE_SECRET"
UNAUTHENTICATED = "PYTEST_REGIONAL_CACHE_UNAUTHENTICATED"

_T = TypeVar("_T")


def _signature(secret: bytes, *fields: bytes) -> bytes:
    # Lengths first, so that bytes cannot move from one field to the next.
    made = hmac.new(secret, b" ".join([_PURPOSE, *(b"%d" % len(field) for field in fields), b""]), hashlib.sha256)
    for field in fields:
        made.update(field)
    return made.digest()


def sign(sealed: bytes, *, key: str, secret: bytes) -> bytes:
    """Return ``sealed`` with its signature (HMAC-SHA256) in front; unchanged with an empty ``secret``."""
    return _signature(secret, key.encode(), sealed) + sealed if secret else sealed


def verified(signed: bytes, *, key: str, secret: bytes, where: str) -> bytes:
    """Return the signed content. An empty ``secret`` accepts anything, signed or not.

    Raises:
        ArtifactError: it is not signed with ``secret`` for ``key``.
    """
    length = hashlib.sha256().digest_size
    if not secret:
        return signed if signed.startswith(MAGIC) else signed[length:]
    given, sealed = signed[:length], signed[length:]
    if not hmac.compare_digest(given, _signature(secret, key.encode(), sealed)):
        raise ArtifactError(
            f"{where} is not signed with this process's secret: forged, moved from another key, damaged, or saved "
            f"where PYTEST_REGIONAL_CACHE_SECRET is another. Set the same secret everywhere."
        )
    return sealed


class Redis:
    """The server of PyTorch's variables; each question is asked once, with a limit on time.

    Raises:
        ValueError: the address is invalid.
    """

    def __init__(self) -> None:
        package = importlib.import_module("redis")
        # With version 3 of the protocol a server can have the client connect to another one.
        limits = {
            "socket_timeout": TIMEOUT_SECONDS,
            "socket_connect_timeout": TIMEOUT_SECONDS,
            "retry": None,
            "protocol": 2,
        }
        if os.environ.get(URL):
            self._client: Any = package.Redis.from_url(os.environ[URL], **limits)
        else:
            host, port = _host_and_port(os.environ)
            self._client = package.Redis(host=host, port=int(port), **limits)

    def get(self, name: str) -> bytes | None:
        """Return the bytes stored as ``name``."""
        value = self._client.get(name)
        if value is not None and not isinstance(value, bytes):
            raise ValueError(f"the server answered GET with a value of type {type(value).__name__}")
        return value

    def put(self, name: str, data: bytes) -> None:
        """Store ``data`` as ``name``."""
        self._client.set(name, data)


class Link:
    """The connection to one server. After a failure, of which one warning tells, it is not used for a minute.

    Args:
        address: for messages.
        connect: makes a connection when needed.
        errors: exceptions of a failing connection.
    """

    def __init__(
        self, address: str, connect: Callable[[], Redis], errors: tuple[type[Exception], ...] = (OSError,)
    ) -> None:
        self.address = address
        self._connect = connect
        self._errors = errors
        self._server: Redis | None = None
        self._paused_until = 0.0

    def ask(self, question: Callable[[Redis], _T]) -> _T | None:
        """Return the answer, or ``None`` while the server cannot be asked."""
        if time.monotonic() < self._paused_until:
            return None
        try:
            self._server = self._server or self._connect()
            return question(self._server)
        except self._errors as error:
            self._server, self._paused_until = None, time.monotonic() + PAUSE_SECONDS
            self._warn(error)
            return None

    def _warn(self, error: Exception) -> None:
        why = f"{type(error).__name__}: {shown(without_secrets_of(os.environ.get(URL, ''), str(error)), _SHOWN)}"
        warn_once(
            f"The shared cache at {self.address} is not used for {PAUSE_SECONDS:.0f} s; results are kept here only. "
            f"{why}. Is a Redis server running there, and does it answer within {TIMEOUT_SECONDS:g} s? Its address "
            f"is TORCHINDUCTOR_REDIS_HOST and TORCHINDUCTOR_REDIS_PORT, or TORCHINDUCTOR_REDIS_URL.",
            about=f"link {self.address}",
        )


class RemoteStore:
    """Entries on a server, each signed with ``secret`` (if empty, unsigned and unchecked).

    Errors here never stop a compile: an unusable entry is a miss with one warning.
    """

    def __init__(self, link: Link, secret: bytes) -> None:
        self.link = link
        self._secret = secret

    def candidates(self, key: str) -> Iterator[bytes]:
        """Yield the payloads saved under ``key``."""
        require_key(key)
        for place in range(PLACES):
            value = self._get(key, place)
            if value is None:
                return
            payload = self._payload(key, place, value)
            if payload is not None:
                yield payload

    def save(self, key: str, payload: bytes) -> bool:
        """Save ``payload`` under ``key`` and return whether that succeeded."""
        require_key(key)
        place = self._place(key, payload)
        signed = sign(seal(payload, kind=KIND, key=key), key=key, secret=self._secret)

        def put(server: Redis) -> bool:
            server.put(_name(key, place), signed)
            return True

        return self.link.ask(put) is True

    def _place(self, key: str, payload: bytes) -> int:
        for place in range(PLACES):
            value = self._get(key, place)
            if value is None or self._payload(key, place, value) in (None, payload):
                return place
        # All are used: replace one, a different one each time.
        return time.monotonic_ns() % PLACES

    def _get(self, key: str, place: int) -> bytes | None:
        return self.link.ask(lambda server: server.get(_name(key, place)))

    def _payload(self, key: str, place: int, value: bytes) -> bytes | None:
        where = f"The entry {_name(key, place)} at {self.link.address}"
        wrong = "signature"
        try:
            sealed = verified(value, key=key, secret=self._secret, where=where)
            wrong = "content"
            return unseal(sealed, kind=KIND, key=key, where=where)
        except ArtifactError as error:
            # A server can hold any number of such entries: report one that was not signed, and one that is damaged.
            warn_once(f"{error} It is not used.", about=f"{wrong} {self.link.address}")
            return None


def open_remote_store(environment: Mapping[str, str] = os.environ) -> RemoteStore | None:
    """Return the shared store of environment and configuration, or ``None``; one warning if it cannot be opened."""
    autograd, graphs = config.remote_cache_settings()
    if autograd is None:
        autograd = bool(graphs or environment.get("TORCHINDUCTOR_REDIS_HOST") or environment.get(URL))
    if not autograd:
        return None
    secret, unauthenticated = environment.get(SECRET, ""), environment.get(UNAUTHENTICATED, "")
    if not secret and unauthenticated != "allow":
        warn_once(
            f"The shared cache is not used: its entries are pickles from a network, and there is no secret to sign "
            f"them with. Set {SECRET} to the same secret on all machines, or {UNAUTHENTICATED}=allow where everybody "
            f"who can reach the server may run code here."
        )
        return None
    if importlib.util.find_spec("redis") is None:
        warn_once(
            "The shared cache is not used: the package redis is missing. Run: pip install 'pytest-regional[redis]'"
        )
        return None
    # One link to an address: connections are reused, failures remembered.
    server = address(environment)
    if server not in _links:
        errors = importlib.import_module("redis.exceptions").RedisError
        _links[server] = Link(server, Redis, (errors, OSError, ValueError, TypeError))
    return RemoteStore(_links[server], os.fsencode(secret))


def address(environment: Mapping[str, str]) -> str:
    """Return the server's address without the password in a URL."""
    url = environment.get(URL)
    return shown(masked(url) if url else ":".join(_host_and_port(environment)), _SHOWN)


def _host_and_port(environment: Mapping[str, str]) -> tuple[str, str]:
    return environment.get("TORCHINDUCTOR_REDIS_HOST", "localhost"), environment.get("TORCHINDUCTOR_REDIS_PORT", "6379")


_links: dict[str, Link] = {}


def reset_failures() -> None:
    """Try every server again at the next request, as in a new process."""
    _links.clear()


def _name(key: str, place: int) -> str:
    return f"pytest-regional:1:{key}:{place}"
