"""A shared cache whose server is evil, broken or slow: a compile is right, in bounded time, with one warning."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from pytest_regional import region
from pytest_regional.harness.isolation.leaks import leaked_threads, threads
from pytest_regional.reference.caching import container, remote
from pytest_regional.reference.caching.container import CacheWarning
from pytest_regional.reference.caching.remote import sign, verified
from pytest_regional.reference.caching.store import LocalStore, Store, open_store
from pytest_regional.testing import regional
from tests.caching.conftest import VARIABLES
from tests.evil_redis import NIL, EvilRedis, Reply, dribble, endless, hang_up, late, silent, then_hang_up
from tests.faults.caching.writer import MACHINE

pytest.importorskip("redis", reason="the package redis is not installed; pip install 'pytest-regional[redis]'")

_T = TypeVar("_T")

#: Seconds of the deadline here, and how much longer a lookup or a save may take on a busy machine.
DEADLINE, SLACK = 0.3, 1.5


def _entry(payload: bytes = b"evil", key: str = "ab", secret: bytes = b"another secret") -> bytes:
    value = sign(container.seal(payload, kind="outer cache entry", key=key), key=key, secret=secret)
    return b"$%d\r\n%s\r\n" % (len(value), value)


#: A reply of each type of RESP2 and RESP3, none of them what GET, SET or the handshake should be answered with.
TYPES: Mapping[str, bytes] = {
    "integer": b":1\r\n",
    "negative integer": b":-1\r\n",
    "huge integer": b":" + b"9" * 6000 + b"\r\n",
    "big number": b"(3492890328409238509324850943850943825024385\r\n",
    "array": b"*2\r\n$1\r\na\r\n$1\r\nb\r\n",
    "empty array": b"*0\r\n",
    "null array": b"*-1\r\n",
    "nested arrays": b"*1\r\n" * 5000 + b":1\r\n",
    "map": b"%1\r\n$1\r\na\r\n:1\r\n",
    "map with an unhashable key": b"%1\r\n*1\r\n:1\r\n:1\r\n",
    "set": b"~1\r\n:1\r\n",
    "true": b"#t\r\n",
    "false": b"#f\r\n",
    "null": b"_\r\n",
    "double": b",1.5\r\n",
    "not a number": b",nan\r\n",
    "verbatim string": b"=7\r\ntxt:abc\r\n",
    "attribute": b"|1\r\n+a\r\n+b\r\n:1\r\n",
    "push message": b">2\r\n+invalidate\r\n*1\r\n$1\r\na\r\n$-1\r\n",
    "moving": b">4\r\n+MOVING\r\n:1\r\n:1\r\n+127.0.0.1:1\r\n$-1\r\n",
    "simple string": b"+evil\r\n",
    "string": b"$4\r\nevil\r\n",
    "empty string": b"$0\r\n\r\n",
    "error": b"-ERR no\r\n",
    "bulk error": b"!6\r\nERR no\r\n",
    "error that is not UTF-8": b"-\xff\xfe\r\n",
    "error with control characters": b"-ERR \x1b[2J\x07\r\n",
    "error of one megabyte": b"-ERR " + b"x" * 2**20 + b"\r\n",
    "error that repeats the password": b"-ERR unknown command 'AUTH', with args beginning with: 'swordfish'\r\n",
    "loading": b"-LOADING Redis is loading\r\n",
    "moved": b"-MOVED 1 127.0.0.1:1\r\n",
    "read only": b"-READONLY no\r\n",
}
#: What is no reply at all.
HEADERS: Mapping[str, bytes] = {
    "no header": b"evil\r\n",
    "nothing but line ends": b"\r\n" * 50,
    "zero bytes": b"\0" * 64 + b"\r\n",
    "another protocol": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "length that is no number": b"$abc\r\nevil\r\n",
    "length below zero": b"$-7\r\nevil\r\n",
    "length as a fraction": b"$1.5\r\nevil\r\n",
    "no length": b"$\r\nevil\r\n",
    "count that is no number": b"*x\r\n",
    "count below zero": b"*-7\r\n",
    "integer that is none": b":one\r\n",
    "not ASCII": "$४\r\nevil\r\n".encode(),
    "no end of line": b"$4\revil\r",
}
#: What takes long, or never ends.
SLOW: Mapping[str, Reply] = {
    "silence": silent,
    "a byte at a time": dribble(b"$400000000\r\n" + b"x" * 100),
    "a header a byte at a time": dribble(b"$0"),
    "an integer a byte at a time": dribble(b"0"),
    "huge length": b"$9999999999999\r\nevil",
    "huge count": b"*2147483647\r\n",
    "endless array": endless(b"*2147483647\r\n", b":1\r\n" * 1000),
    "endless line": endless(b"+", b"x" * 4096),
    "endless push messages": endless(b"", b">1\r\n+a\r\n"),
    "late, within each read's limit": late(NIL, DEADLINE * 0.95),
}
#: Where a connection can end.
ENDS: Mapping[str, Reply] = {
    "hangs up": hang_up,
    "hangs up in a header": then_hang_up(b"$4"),
    "hangs up in a body": then_hang_up(b"$400\r\nevil"),
    "hangs up before the line's end": then_hang_up(b"$4\r\nevil"),
    "hangs up after the reply": then_hang_up(NIL),
}
#: Whole replies of the right type that hold what nobody with the secret wrote.
CONTENTS: Mapping[str, bytes] = {
    "another's entry": _entry(),
    "unsigned": _entry(secret=b""),
    "a pickle": b"$4\r\n\x80\x04N.\r\n",
}
ALL = {**TYPES, **HEADERS, **SLOW, **ENDS, **CONTENTS}
UNASKED = {**HEADERS, **SLOW, **ENDS, "push message": TYPES["push message"], "string": TYPES["string"]}
HANDSHAKE = ("HELLO", "CLIENT", "AUTH", "SELECT")


@pytest.fixture(autouse=True)
def as_new_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing said, nothing failed; a short deadline; a machine that takes no time to describe."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv(remote.SECRET, "a secret")
    monkeypatch.setattr(remote, "TIMEOUT_SECONDS", DEADLINE)
    monkeypatch.setattr(container, "this_machine", lambda: MACHINE)
    container.reset_warnings()
    remote.reset_failures()
    yield
    container.reset_warnings()
    remote.reset_failures()


@contextlib.contextmanager
def _at_most_one_warning(left: tuple[str, ...] = ()) -> Iterator[list[warnings.WarningMessage]]:
    before = threads()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield said
    assert len(said) <= 1, [str(one.message) for one in said]
    assert all(one.category is CacheWarning and len(str(one.message)) < 1500 for one in said)
    assert all(str(one.message).isprintable() for one in said)
    remote.reset_failures()
    assert _left(before) == left


def _left(before: frozenset[int]) -> tuple[str, ...]:
    """Return the names of threads that do not end; one that has much to read in its socket's buffer does so first."""
    deadline = time.monotonic() + 2
    while left := tuple(name for name in leaked_threads(before) if name != "evil-redis"):
        if time.monotonic() > deadline:
            break
    return left


@pytest.fixture
def attacked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[EvilRedis], list[str]]:
    """Look up and save while a server is evil: in bounded time, with what is on this machine; return the warnings."""

    def attack(server: EvilRedis, scheme: str = "redis", left: tuple[str, ...] = ()) -> list[str]:
        monkeypatch.setenv("TORCHINDUCTOR_REDIS_URL", f"{scheme}://me:swordfish@127.0.0.1:{server.port}/3")
        shared = open_store().remote
        assert shared is not None
        store = Store(LocalStore(tmp_path / "local"), shared)
        with _at_most_one_warning(left) as said:
            for key, expected in (("ab", []), ("cd", []), ("ab", [b"ours"])):
                assert _timed(lambda key=key: list(store.candidates(key))) == expected
                assert _timed(lambda: store.save("ab", b"ours"))
        return [str(one.message) for one in said]

    return attack


def _timed(act: Callable[[], _T]) -> _T:
    def too_late(*_: object) -> None:
        raise AssertionError("it waits for ever")

    previous = signal.signal(signal.SIGALRM, too_late)
    signal.alarm(6)
    began = time.monotonic()
    try:
        result = act()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    assert time.monotonic() - began < DEADLINE + SLACK
    return result


def test_a_good_server_is_no_attack(attacked: Callable[[EvilRedis], list[str]]) -> None:
    """The server of these tests speaks well enough: all is asked, nothing is said."""
    with EvilRedis() as server:
        assert attacked(server) == []
    assert {b"SELECT", b"GET", b"SET"} <= {*server.commands}


@pytest.mark.parametrize("name", ["a byte at a time", "integer", "map"])
def test_the_attacks_are_attacks(name: str) -> None:
    """A client of redis-py alone waits as long as bytes come, and takes every reply."""
    import redis

    client = redis.Redis(port=0, socket_timeout=DEADLINE, retry=None)
    with EvilRedis({b"GET": ALL[name]}) as server:
        client.get_connection_kwargs().update(port=server.port)
        try:
            with pytest.raises(AssertionError, match=r"for ever|not bytes"):
                assert _timed(lambda: isinstance(client.get("ab"), bytes)), "not bytes"
        finally:
            client.close()


def test_a_fork_leaves_the_connections_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    with EvilRedis() as server, _at_most_one_warning() as said:
        monkeypatch.setenv("TORCHINDUCTOR_REDIS_URL", f"redis://127.0.0.1:{server.port}")
        shared = open_store().remote
        assert shared is not None
        assert list(shared.candidates("ab")) == []
        child = os.fork()
        if child == 0:
            remote.reset_failures()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert list(shared.candidates("ab")) == []
        assert server.connections == 1
        assert said == []


@pytest.mark.parametrize("reply", ALL.values(), ids=ALL)
@pytest.mark.parametrize("command", ["GET", "SET"])
def test_an_answer(attacked: Callable[[EvilRedis], list[str]], command: str, reply: Reply) -> None:
    with EvilRedis({command.encode(): reply}) as server:
        said = attacked(server)
        assert server.clients_gone(2)
    assert all("swordfish" not in text and f"127.0.0.1:{server.port}" in text for text in said)


@pytest.mark.parametrize("reply", ALL.values(), ids=ALL)
def test_a_handshake(attacked: Callable[[EvilRedis], list[str]], reply: Reply) -> None:
    with EvilRedis({command.encode(): reply for command in HANDSHAKE}) as server:
        said = attacked(server)
        assert server.clients_gone(2)
    assert all("swordfish" not in text for text in said)


@pytest.mark.parametrize("greeting", UNASKED.values(), ids=UNASKED)
def test_an_unrequested_greeting(attacked: Callable[[EvilRedis], list[str]], greeting: Reply) -> None:
    def greet(connection: socket.socket) -> None:
        connection.sendall(greeting) if isinstance(greeting, bytes) else greeting(connection)

    with EvilRedis(greet=greet) as server:
        attacked(server)
        assert server.clients_gone(2)


@pytest.mark.parametrize("name", ["silence", "a byte at a time", "simple string", "hangs up", "zero bytes"])
def test_no_tls_where_tls_is_expected(
    attacked: Callable[[EvilRedis, str], list[str]], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def greet(connection: socket.socket) -> None:
        connection.sendall(ALL[name]) if isinstance(ALL[name], bytes) else ALL[name](connection)

    with EvilRedis(greet=greet) as server:
        assert len(attacked(server, "rediss")) == 1
        assert server.clients_gone(2)


def test_a_name_that_is_looked_up_for_ever(
    attacked: Callable[[EvilRedis], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing interrupts the resolver: its thread is left to itself, and asks nothing when it is told the address."""
    over = threading.Event()
    real = socket.getaddrinfo

    def resolve(*arguments: Any, **keywords: Any) -> Any:
        over.wait(20)
        return real(*arguments, **keywords)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    threading.Timer(2.5, over.set).start()
    with EvilRedis() as server:
        (said,) = attacked(server, left=("regional-server",))
        over.set()
        time.sleep(0.3)
        assert server.commands == []
        assert server.clients_gone(2)
    assert "in the time that is allowed" in said


def test_an_interrupt_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(remote, "TIMEOUT_SECONDS", 60.0)
    before, previous = threads(), signal.signal(signal.SIGALRM, interrupt)
    try:
        with EvilRedis({b"GET": silent}) as server:
            monkeypatch.setenv("TORCHINDUCTOR_REDIS_URL", f"redis://127.0.0.1:{server.port}")
            shared = open_store().remote
            assert shared is not None
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(KeyboardInterrupt):
                list(shared.candidates("ab"))
            assert server.clients_gone(2)
            assert _left(before) == ()
    finally:
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.parametrize("secret", [b"\xff\xfe", b"caf\xe9", "\N{SNOWMAN}".encode()])
def test_a_secret_of_any_bytes_signs(monkeypatch: pytest.MonkeyPatch, secret: bytes, tmp_path: Path) -> None:
    monkeypatch.setitem(os.environb, remote.SECRET.encode(), secret)
    monkeypatch.setattr(remote, "_link", lambda address: remote.Link(address, lambda: kept))
    kept = InMemory()
    monkeypatch.setenv("TORCHINDUCTOR_REDIS_HOST", "here")
    shared = open_store().remote
    assert shared is not None
    assert shared.save("ab", b"ours")
    (value,) = kept.values.values()
    assert verified(value, key="ab", secret=secret, where="here").startswith(container.MAGIC)
    assert list(shared.candidates("ab")) == [b"ours"]


class InMemory:
    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def get(self, name: str) -> bytes | None:
        return self.values.get(name)

    def put(self, name: str, data: bytes) -> None:
        self.values[name] = data

    def give_up(self) -> None: ...


@pytest.mark.parametrize("variable", ["HOST", "URL", "PORT"])
@pytest.mark.parametrize(
    "value", [b"\xff", b"redis://:\xff@127.0.0.1:1", b"redis://:a/b@127.0.0.1:1", b"redis://[", b"\x1b[2J"]
)
def test_an_address_of_any_bytes_is_one_warning(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: bytes, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_REDIS_HOST", "127.0.0.1")
    monkeypatch.setitem(os.environb, f"TORCHINDUCTOR_REDIS_{variable}".encode(), value)
    shared = open_store().remote
    assert shared is not None
    with _at_most_one_warning() as said:
        assert _timed(lambda: list(shared.candidates("ab"))) == []
    assert len(said) == 1


@pytest.mark.parametrize(
    "name", ["integer", "map", "a byte at a time", "another's entry", "late, within each read's limit"]
)
def test_a_program_is_compiled_all_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with region("mlp"):
            return x @ x

    x = torch.ones(4, 4)
    with EvilRedis({b"GET": ALL[name]}) as server, regional(shared_cache=True) as harness:
        monkeypatch.setenv("TORCHINDUCTOR_REDIS_URL", f"redis://127.0.0.1:{server.port}")
        with _at_most_one_warning() as said, harness.expect(region_compiles=1, cache_misses=1, cache_hits=0):
            assert torch.equal(harness.compile(program)(x), program(x))
        assert said or name.startswith("late")
        harness.restart()
        with harness.expect(region_compiles=0, cache_hits=1):
            assert torch.equal(harness.compile(program)(x), program(x))
