"""Entries shared between machines, in Redis.

Enabled by ``torch._functorch.config.enable_remote_autograd_cache`` (the setting for PyTorch's own cache of whole
results; ``False`` disables it). If that is None: enabled by ``torch._inductor.config.fx_graph_remote_cache``, or by
``TORCHINDUCTOR_REDIS_HOST`` or ``TORCHINDUCTOR_REDIS_URL``, which alone do not enable PyTorch's own remote caches. The
server's address comes from PyTorch's variables.

An entry has one of a few numbered slots of its key: the first that is free, broken, or already its own. Two machines
that save at the same moment may choose the same slot; the lost entry is compiled and saved again.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from pytest_regional._base.secrets import masked, without_secrets_of
from pytest_regional._base.text import shown
from pytest_regional._torch import config
from pytest_regional.reference.caching.container import (
    KIND,
    MAGIC,
    ArtifactError,
    require_key,
    seal,
    unseal,
    warn_once,
)

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


class BytesByName(Protocol):
    """What is asked of a server."""

    def get(self, name: str) -> bytes | None:
        """Return the bytes stored as ``name``."""

    def put(self, name: str, data: bytes) -> None:
        """Store ``data`` as ``name``."""


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
        self, address: str, connect: Callable[[], BytesByName], errors: tuple[type[Exception], ...] = (OSError,)
    ) -> None:
        self.address = address
        self._connect = connect
        self._errors = errors
        self._server: BytesByName | None = None
        self._paused_until = 0.0

    def ask(self, question: Callable[[BytesByName], _T]) -> _T | None:
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
        return self.link.ask(lambda server: _put(server, _name(key, place), signed)) is True

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
    if not is_wanted(environment):
        return None
    secret, unauthenticated = environment.get(SECRET, ""), environment.get(UNAUTHENTICATED, "")
    if not secret and unauthenticated != "allow":
        warn_once(
            f"The shared cache is not used: its entries are pickles from a network, and there is no secret to sign "
            f"them with. Set {SECRET} to the same secret on all machines, or {UNAUTHENTICATED}=allow where everybody "
            f"who can reach the server may run code here."
        )
        return None
    if not redis_is_installed():
        warn_once(
            "The shared cache is not used: the package redis is missing. Run: pip install 'pytest-regional[redis]'"
        )
        return None
    return RemoteStore(_link(address(environment)), os.fsencode(secret))


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Say whether configuration or environment enable a shared cache."""
    autograd, graphs = config.remote_cache_settings()
    if autograd is not None:
        return autograd
    return bool(graphs or environment.get("TORCHINDUCTOR_REDIS_HOST") or environment.get(URL))


def address(environment: Mapping[str, str]) -> str:
    """Return the server's address without the password in a URL."""
    url = environment.get(URL)
    return shown(masked(url) if url else ":".join(_host_and_port(environment)), _SHOWN)


def _host_and_port(environment: Mapping[str, str]) -> tuple[str, str]:
    return environment.get("TORCHINDUCTOR_REDIS_HOST", "localhost"), environment.get("TORCHINDUCTOR_REDIS_PORT", "6379")


def redis_is_installed() -> bool:
    """Say whether the Python package ``redis`` is installed."""
    return importlib.util.find_spec("redis") is not None


_links: dict[str, Link] = {}


def _link(address: str) -> Link:
    """Return this process's one link to ``address``: connections are reused, failures remembered."""
    if address not in _links:
        errors = importlib.import_module("redis.exceptions").RedisError
        _links[address] = Link(address, Redis, (errors, OSError, ValueError, TypeError))
    return _links[address]


def reset_failures() -> None:
    """Try every server again at the next request, as in a new process."""
    _links.clear()


def _name(key: str, place: int) -> str:
    return f"pytest-regional:1:{key}:{place}"


def _put(server: BytesByName, name: str, data: bytes) -> bool:
    server.put(name, data)
    return True
