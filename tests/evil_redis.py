"""A server that speaks the protocol of Redis as it likes: one thread with sockets, and replies by command."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping

#: What is sent, or what is done with the socket, in answer to one command.
Reply = bytes | Callable[[socket.socket], None]

OK, NIL = b"+OK\r\n", b"$-1\r\n"
#: A server as it should be, with nothing in it.
GOOD: Mapping[bytes, Reply] = {
    b"HELLO": b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:3\r\n",
    b"CLIENT": OK,
    b"AUTH": OK,
    b"SELECT": OK,
    b"PING": b"+PONG\r\n",
    b"GET": NIL,
    b"SET": OK,
}


class EvilRedis:
    """Listens for the length of a ``with`` block.

    Args:
        replies: to commands by name, in place of the good ones.
        greet: done when a connection is made, before any command.
    """

    def __init__(
        self, replies: Mapping[bytes, Reply] | None = None, greet: Callable[[socket.socket], None] | None = None
    ) -> None:
        self.replies = {**GOOD, **(replies or {})}
        self.greet = greet
        self.commands: list[bytes] = []
        self.port = 0
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> EvilRedis:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self._listening, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for one in (self._listening, *self._open):
            one.close()

    @property
    def connections(self) -> int:
        """How many were made."""
        return len(self._open)

    def clients_gone(self, within: float) -> bool:
        """Say whether every client closes its connections within so many seconds."""
        deadline = time.monotonic() + within
        return all(_is_closed(one, deadline) for one in self._open)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="evil-redis", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self._open.append(connection)
                self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self.greet:
                self.greet(connection)
            for command in _commands(connection):
                name = command[0].upper()
                self.commands.append(name)
                reply = self.replies.get(name, b"-ERR unknown command\r\n")
                if reply is NIL and b"HELLO" in self.commands:
                    reply = b"_\r\n"  # nothing is another word in the protocol's third version
                connection.sendall(reply) if isinstance(reply, bytes) else reply(connection)


def dribble(data: bytes, every: float = 0.05) -> Reply:
    """Send ``data`` a byte at a time, again and again."""

    def send(connection: socket.socket) -> None:
        while True:
            for index in range(len(data)):
                connection.sendall(data[index : index + 1])
                time.sleep(every)

    return send


def late(data: bytes, seconds: float) -> Reply:
    """Send ``data`` after so many seconds."""

    def send(connection: socket.socket) -> None:
        time.sleep(seconds)
        connection.sendall(data)

    return send


def endless(start: bytes, piece: bytes) -> Reply:
    """Send ``start``, then ``piece`` as fast as it is taken, without an end."""

    def send(connection: socket.socket) -> None:
        connection.sendall(start)
        while True:
            connection.sendall(piece)

    return send


def silent(connection: socket.socket) -> None:
    """Say nothing, and keep the connection."""
    while connection.recv(65536):
        pass


def hang_up(connection: socket.socket) -> None:
    """Close the connection."""
    connection.shutdown(socket.SHUT_RDWR)


def then_hang_up(data: bytes) -> Reply:
    """Send ``data``, which is not the whole, and close the connection."""

    def send(connection: socket.socket) -> None:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_RDWR)

    return send


def _commands(connection: socket.socket) -> Iterator[list[bytes]]:
    with connection.makefile("rb") as stream:
        while line := stream.readline():
            if line.startswith(b"*"):
                yield [_bulk(stream) for _ in range(int(line[1:]))]


def _bulk(stream: object) -> bytes:
    length = int(stream.readline()[1:])  # type: ignore[attr-defined]
    return stream.read(length + 2)[:-2]  # type: ignore[attr-defined,no-any-return]


def _is_closed(connection: socket.socket, deadline: float) -> bool:
    while time.monotonic() < deadline:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            if not connection.recv(65536):
                return True
        except TimeoutError:
            return False
        except OSError:
            return True
    return False
