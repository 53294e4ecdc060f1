"""A client of a Redis server that is not trusted: its replies are checked, its connections can be ended at any time."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from pytest_regional._errors import RegionalError
from pytest_regional._text import shown

#: Seconds for which a server that failed is left alone.
PAUSE_SECONDS = 60.0

_T = TypeVar("_T")


class ServerError(RegionalError, ConnectionError):
    """A server cannot be used; the message says why, without what the address holds of users and passwords."""


class Server(Protocol):
    """What can be asked, by whatever methods."""

    def give_up(self) -> None:
        """End all connections, from any thread: what waits for them fails, and so does what is asked later."""


_S = TypeVar("_S", bound=Server)


@dataclass
class Patience:
    """How long one lookup, or one save, may wait for a server, whatever is asked of it and however often.

    Attributes:
        seconds: what is left.
    """

    seconds: float


class ServerLink(Generic[_S]):
    """The way to one server, for all threads. After a failure it is not used for a minute.

    Args:
        connect: returns the server, when it is needed.
        errors: what ``connect`` and questions raise where the server, or its address, is to blame.
        tell: is given the error when the link pauses.
    """

    def __init__(
        self, connect: Callable[[], _S], errors: tuple[type[Exception], ...], tell: Callable[[Exception], None]
    ) -> None:
        self._connect = connect
        self._errors = errors
        self._tell = tell
        self._server: _S | None = None
        self._paused_until = 0.0
        self._lock = threading.Lock()

    def ask(self, question: Callable[[_S], _T], patience: Patience) -> _T | None:
        """Return the answer, or ``None`` while the server cannot be asked.

        Args:
            question: asks the server; runs in another thread.
            patience: how long that may take; what it takes is subtracted.
        """
        began = time.monotonic()
        if began < self._paused_until:
            return None
        try:
            server = self._connected()
            return within(patience.seconds, lambda: question(server), server.give_up)
        except self._errors as error:
            self._pause()
            self._tell(error)
            return None
        finally:
            patience.seconds -= time.monotonic() - began

    def close(self) -> None:
        """End the connections; the next question makes new ones."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.give_up()

    def _connected(self) -> _S:
        with self._lock:
            if self._server is None:
                self._server = self._connect()
            return self._server

    def _pause(self) -> None:
        self.close()
        self._paused_until = time.monotonic() + PAUSE_SECONDS


def within(seconds: float, call: Callable[[], _T], give_up: Callable[[], None]) -> _T:
    """Return what ``call`` returns, or raise what it raises, in at most so many seconds.

    Args:
        seconds: of the wall clock.
        call: runs in a thread of its own.
        give_up: ends what ``call`` waits for; called when the time is over, and when this thread is interrupted.

    Raises:
        ServerError: the time is over.
    """
    answer: Future[_T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again by who waits for it
            answer.set_exception(error)

    in_time = False
    try:
        if seconds > 0:
            threading.Thread(target=run, name="regional-server", daemon=True).start()
            in_time = bool(wait([answer], seconds).done)
    finally:
        if not in_time:
            give_up()
    if not in_time:  # whatever the call ended with when it was given up
        raise ServerError("no whole answer in the time that is allowed")
    return answer.result()


#: What of a client's settings says where its server is, and who asks. All that begins with ``ssl_`` is kept as well.
_KEPT = frozenset({"host", "port", "path", "db", "username", "password", "client_name"})


class UntrustedRedis:
    """A client of the server that another client was made for.

    It speaks the second version of the protocol: with the third a server can send messages that nobody asked for, and
    have redis-py connect to another server. It tries once, and whatever a server can make redis-py raise is a
    :class:`~pytest_regional._redis.ServerError`.

    Args:
        client: a ``redis.Redis`` that has not connected yet (redis 5 to 8).
        timeout: seconds for a connect, and for one read; the time of a whole answer is limited by
            :func:`pytest_regional._redis.within`.
    """

    def __init__(self, client: Any, timeout: float) -> None:
        redis = importlib.import_module("redis")
        old = client.connection_pool
        settings = {k: v for k, v in old.connection_kwargs.items() if k in _KEPT or k.startswith("ssl_")}
        self._credentials = [
            value for name in ("username", "password") if isinstance(value := settings.get(name), str) and value
        ]
        for name in ("username", "password"):
            if isinstance(settings.get(name), str):
                settings[name] = os.fsencode(settings[name])  # the bytes that the environment holds, whatever they are
        #: Where the server is, without users and passwords.
        self.address = str(settings.get("path") or f"{settings.get('host')}:{settings.get('port')}")
        self._connections: list[Any] = []
        self._over = False
        self._lock = threading.Lock()
        self._pool = redis.ConnectionPool(
            connection_class=old.connection_class,
            **settings,
            protocol=2,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=importlib.import_module("redis.retry").Retry(_no_backoff(), 0),
            redis_connect_func=self._begin,
        )
        self.client = redis.Redis(connection_pool=self._pool)

    def get(self, name: str) -> bytes | None:
        """Return what is stored as ``name``.

        Raises:
            ServerError: there is no such answer.
        """
        value = self.ask(lambda client: client.get(name))
        if value is not None and not isinstance(value, bytes):
            raise ServerError(f"it answered GET with {_kind(value)}, not with a string of bytes")
        return value

    def set(self, name: str, data: bytes) -> None:
        """Store ``data`` as ``name``.

        Raises:
            ServerError: it is not stored.
        """
        value = self.ask(lambda client: client.set(name, data))
        if value is not True:
            raise ServerError(f"it answered SET with {_kind(value)}, not with OK")

    def ask(self, question: Callable[[Any], _T]) -> _T:
        """Return what ``question`` returns of the client.

        Raises:
            ServerError: for whatever it raises, since a server decides that.
        """
        try:
            return question(self.client)
        except Exception as error:
            self.give_up()
            raise self._told(error) from error

    def give_up(self) -> None:
        """End all connections, from whatever thread, and have questions fail from now on."""
        with self._lock:
            self._over = True
            connections = list(self._connections)
        for connection in connections:
            # Only shut down: closed by another thread, its number could be another file's when it is read from again.
            # The thread that reads closes it. `_sock` of redis-py 5 to 8; there is no public way to it.
            sock = getattr(connection, "_sock", None)
            if sock is not None and connection.pid == os.getpid():  # a fork has its parent's sockets, too
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)
        self._pool.disconnect(inuse_connections=False)

    def _begin(self, connection: Any) -> None:
        """Take a connection that was just made, and have it introduce itself."""
        with self._lock:
            if connection not in self._connections:
                self._connections.append(connection)
            over = self._over
        if over:
            connection.disconnect()
            raise ServerError("connected when nobody waited any more")
        try:
            connection.on_connect()
        except Exception:
            connection.disconnect()  # redis-py does that for its own errors alone
            raise

    def _told(self, error: Exception) -> ServerError:
        redis = importlib.import_module("redis")
        text = str(error)
        for secret in self._credentials:
            text = text.replace(secret, "***")  # servers repeat a command that they do not know
        text = f"{type(error).__name__}: {shown(text, 300)}"
        if isinstance(error, (redis.TimeoutError, TimeoutError)):
            return ServerError(text)
        if isinstance(error, (redis.ConnectionError, OSError)):
            return ServerError(f"the server cannot be reached: {text}")
        return ServerError(f"it answered with what cannot be understood: {text}")


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a value of type {type(value).__name__}"


def _no_backoff() -> Any:
    return importlib.import_module("redis.backoff").NoBackoff()
