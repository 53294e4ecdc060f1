"""Hypothesis's examples on a Redis server: a run goes on without it when it does not answer, or answers nonsense."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import redis
from hypothesis.database import ExampleDatabase
from hypothesis.extra.redis import RedisExampleDatabase

from pytest_regional._errors import RegionalWarning
from pytest_regional._redis import PAUSE_SECONDS, Patience, ServerLink, UnexpectedReplyError, UntrustedRedis, within

#: What one question may take.
TIMEOUT_SECONDS = 2.0


class ExamplesWarning(RegionalWarning):
    """Failing examples are not shared for a while; tests run all the same."""


class _Server:
    """Hypothesis's own database over a client that is not trusted."""

    def __init__(self, url: str) -> None:
        self._redis = UntrustedRedis(redis.Redis.from_url(url), TIMEOUT_SECONDS)
        self._database = RedisExampleDatabase(self._redis.client, key_prefix=b"pytest-regional:")
        self.address = self._redis.address
        self.give_up = self._redis.give_up

    def ping(self) -> None:
        self._redis.ask(lambda client: client.ping())

    def fetch(self, key: bytes) -> list[bytes]:
        found = self._redis.ask(lambda _: list(self._database.fetch(key)))
        if not all(isinstance(one, bytes) for one in found):
            raise UnexpectedReplyError("it answered SMEMBERS with something else than strings of bytes")
        return found

    def change(self, change: Callable[[RedisExampleDatabase], None]) -> None:
        self._redis.ask(lambda _: change(self._database))


class SharedExamples(ExampleDatabase):
    """Examples on the server at ``url``; nothing is raised for what the server does, and no question takes long."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._address = _Server(url).address
        self._link: ServerLink[_Server] = ServerLink(lambda: _Server(url), (OSError,), self._warn)
        self._warned = False

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """Return the examples under ``key``."""
        return self._link.ask(lambda server: server.fetch(key), Patience(TIMEOUT_SECONDS)) or ()

    def save(self, key: bytes, value: bytes) -> None:
        """Keep ``value`` under ``key``."""
        self._change(lambda database: database.save(key, value))

    def delete(self, key: bytes, value: bytes) -> None:
        """Take ``value`` from under ``key``."""
        self._change(lambda database: database.delete(key, value))

    def move(self, src: bytes, dest: bytes, value: bytes) -> None:
        """Take ``value`` from under ``src`` and keep it under ``dest``, at once."""
        self._change(lambda database: database.move(src, dest, value))

    def close(self) -> None:
        """End the connection; the next question makes a new one."""
        self._link.close()

    def _change(self, change: Callable[[Any], None]) -> None:
        self._link.ask(lambda server: server.change(change), Patience(TIMEOUT_SECONDS))

    def _warn(self, error: Exception) -> None:
        if self._warned:
            return
        self._warned = True
        warnings.warn(
            f"examples are not shared for {PAUSE_SECONDS:.0f} s: {self._address}: "
            f"{type(error).__name__}: {error}. regional_examples in the ini file says where they are kept",
            ExamplesWarning,
            stacklevel=2,
        )


@functools.cache
def examples_at(url: str) -> SharedExamples:
    """Return this process's one way to the server at ``url``: failures are remembered."""
    return SharedExamples(url)


def require_answer(url: str) -> None:
    """Ask the server at ``url`` whether it is there.

    Raises:
        ServerError: it does not answer in time, or answers nonsense.
        ValueError: an address that is none.
    """
    server = _Server(url)
    try:
        within(TIMEOUT_SECONDS, server.ping, server.give_up)
    finally:
        server.give_up()
