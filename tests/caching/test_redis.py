"""The shared cache with a real Redis server, and with servers that fail."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_regional.reference import CacheWarning
from pytest_regional.reference.caching import container
from pytest_regional.reference.caching import store as stores
from pytest_regional.reference.caching.store import LocalStore, Store, open_store
from tests.redis_server import RunningRedis, free_port

pytestmark = pytest.mark.usefixtures("become")


@pytest.fixture
def redis(environment: pytest.MonkeyPatch, redis_port: int) -> int:
    environment.setenv("TORCHINDUCTOR_REDIS_PORT", str(redis_port))
    return redis_port


@pytest.fixture
def raw(redis: int) -> Iterator[object]:
    """The server as an attacker, or a broken network, sees it."""
    import redis as package

    client = package.Redis(port=redis)
    client.flushall()
    yield client
    client.close()


def _machine(name: str, tmp_path: Path) -> Store:
    shared = open_store().remote
    assert shared is not None
    return Store(LocalStore(tmp_path / name), shared)


@pytest.mark.usefixtures("quiet", "raw")
def test_redis_shares_entries_between_machines(tmp_path: Path) -> None:
    first, second = (_machine(name, tmp_path) for name in ("first", "second"))
    payload = bytes(range(256)) * 20_000
    assert first.save("ab", payload)
    assert list(second.candidates("ab")) == [payload]
    assert list(second.local.candidates("ab")) == [payload]


@pytest.mark.usefixtures("raw")
def test_redis_shares_entries_between_processes(tmp_path: Path) -> None:
    code = """
import sys
from pytest_regional.reference.caching import container
from pytest_regional.reference.caching.store import open_store
from tests.faults.caching.writer import MACHINE
container.this_machine = lambda: MACHINE
assert open_store().save("ab", b"from another process")
"""
    subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", code], check=True, cwd=Path(__file__).parents[2])
    assert list(_machine("here", tmp_path).candidates("ab")) == [b"from another process"]


def test_redis_with_unsigned_bytes_is_a_miss(tmp_path: Path, raw: object) -> None:
    store = _machine("here", tmp_path)
    store.remote.save("ab", b"payload")  # type: ignore[union-attr]
    (name,) = raw.keys()  # type: ignore[attr-defined]
    value = raw.get(name)  # type: ignore[attr-defined]
    for broken, key in ((value[:-1], "ab"), (b"", "ab"), (b"\x80\x04N.", "ab"), (value, "cd")):
        raw.set(name.decode().replace(":ab:", f":{key}:"), broken)  # type: ignore[attr-defined]
        container.reset_warnings()
        with pytest.warns(CacheWarning, match="not signed") as said:
            assert list(store.candidates(key)) == []
        assert len(said) == 1


def test_redis_that_refuses_to_store_is_one_warning(tmp_path: Path, raw: object) -> None:
    raw.config_set("maxmemory", "1")  # type: ignore[attr-defined]
    try:
        store = _machine("here", tmp_path)
        with pytest.warns(CacheWarning, match="OutOfMemoryError") as said:
            assert [store.save("ab", b"%d" % number) for number in range(3)] == [True] * 3
        assert len(said) == 1
    finally:
        raw.config_set("maxmemory", "0")  # type: ignore[attr-defined]
    assert len(list(store.candidates("ab"))) == 3


def test_redis_that_goes_away_is_one_warning(environment: pytest.MonkeyPatch, tmp_path: Path, redis_port: int) -> None:
    port = free_port()
    environment.setenv("TORCHINDUCTOR_REDIS_PORT", str(port))
    with RunningRedis(port, tmp_path):
        store = _machine("here", tmp_path)
        assert store.save("ab", b"payload")
    with pytest.warns(CacheWarning, match=f"127.0.0.1:{port} is not used for 60 s.*ConnectionError") as said:
        assert [list(store.candidates(key)) for key in ("ab", "cd")] == [[b"payload"], []]
    assert len(said) == 1


def test_no_server_is_one_warning_and_no_waiting(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.setenv("TORCHINDUCTOR_REDIS_PORT", str(free_port()))
    store = _machine("here", tmp_path)
    started = time.monotonic()
    with pytest.warns(CacheWarning, match="ConnectionError") as said:
        assert (store.save("ab", b"payload"), list(store.candidates("ab"))) == (True, [b"payload"])
    assert len(said) == 1
    assert time.monotonic() - started < 1


def test_a_server_that_never_answers_is_waited_for_once(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment.setenv("TORCHINDUCTOR_REDIS_PORT", str(silent.getsockname()[1]))
        environment.setattr(stores, "TIMEOUT_SECONDS", 0.5)
        store = _machine("here", tmp_path)
        started = time.monotonic()
        with pytest.warns(CacheWarning, match="is not used for 60 s.*[Tt]imeout") as said:
            assert all(store.save("ab", b"%d" % number) for number in range(5))
        assert len(said) == 1
        assert 0.4 < time.monotonic() - started < 1.5
        assert len(list(store.candidates("ab"))) == 5


#: What a server answers to whatever it is asked: of the wrong type, no reply at all, and nothing.
REPLIES = {
    "integer": b":1\r\n",
    "map": b"*2\r\n$1\r\na\r\n$1\r\nb\r\n",
    "error that repeats the password": b"-ERR unknown command 'AUTH', with args beginning with: 'swordfish'\r\n",
    "another protocol": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "cut": b"$400\r\nevil",
    "nothing": b"",
}


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
def test_a_server_that_answers_something_else_is_one_warning(
    environment: pytest.MonkeyPatch, tmp_path: Path, reply: bytes
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with contextlib.suppress(OSError):  # closed by the test, or by the client
                while True:
                    connection = server.accept()[0]
                    with connection:
                        connection.recv(4096)
                        connection.sendall(reply)

        threading.Thread(target=answer, daemon=True).start()
        port = server.getsockname()[1]
        environment.setenv("TORCHINDUCTOR_REDIS_URL", f"redis://me:swordfish@127.0.0.1:{port}/3")
        environment.setattr(stores, "TIMEOUT_SECONDS", 0.5)
        store = _machine("here", tmp_path)
        with pytest.warns(CacheWarning, match="is not used for 60 s") as said:
            found = [list(store.candidates("ab")), store.save("ab", b"ours"), list(store.candidates("ab"))]
        assert found == [[], True, [b"ours"]]
        assert len(said) == 1
        assert "swordfish" not in str(said[0].message)


def test_an_address_that_is_none_is_one_warning(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.setenv("TORCHINDUCTOR_REDIS_PORT", "none")
    store = _machine("here", tmp_path)
    with pytest.warns(CacheWarning, match="127.0.0.1:none is not used.*ValueError") as said:
        assert [store.save("ab", b"payload") for _ in range(2)] == [True, True]
    assert len(said) == 1
