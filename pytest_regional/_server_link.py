"""Asking a server that may do whatever it likes: never longer than allowed, and not again for a while after a failure.

Time limits of sockets are limits of one read: a server that sends a byte now and then is read from for ever, and one
that takes its time is waited for as often as it is asked. So a question is asked by a thread of its own, which is left
to itself when the time is over; then its sockets end, and the thread with them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

#: Seconds for which a server that failed is left alone.
PAUSE_SECONDS = 60.0

_T = TypeVar("_T")


class ServerError(ConnectionError):
    """A server cannot be used; the message says why, without what the address holds of users and passwords."""


class ServerTimeoutError(ServerError):
    """There was no whole answer in time."""


class UnexpectedReplyError(ServerError):
    """A server answered with something else than what the command is answered with."""


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
        ServerTimeoutError: the time is over.
    """
    answer: Future[_T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again by who waits for it
            answer.set_exception(error)

    try:
        if seconds > 0:
            threading.Thread(target=run, name="regional-server", daemon=True).start()
            wait([answer], seconds)
    finally:
        if not answer.done():
            give_up()
    if not answer.done():
        raise ServerTimeoutError("no whole answer in the time that is allowed")
    return answer.result()


__all__ = [
    "PAUSE_SECONDS",
    "Patience",
    "Server",
    "ServerError",
    "ServerLink",
    "ServerTimeoutError",
    "UnexpectedReplyError",
    "within",
]
