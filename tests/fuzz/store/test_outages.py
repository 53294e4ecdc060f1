"""A Redis server that is killed, restarted, slow, or answers nonsense."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_regional._redis import UntrustedRedis
from pytest_regional.fuzz.store import Entry, Store, StoreError, open_store, server
from tests.evil_redis import EvilRedis, Reply, dribble, endless, hang_up, silent, then_hang_up
from tests.fuzz.store.conftest import KEY
from tests.fuzz.store.processes import printed, running
from tests.fuzz.store.test_processes import COUNT
from tests.redis_server import RunningRedis, free_port

pytest.importorskip("redis", reason="the package redis is not installed; pip install 'pytest-regional[redis]'")


@pytest.fixture
def url(redis_port: int, tmp_path: Path) -> str:
    return f"redis://127.0.0.1:{redis_port}/0?campaign={tmp_path.name}"


class DurableRedis(RunningRedis):
    """A server that keeps what it acknowledges, and can be killed and started again."""

    def __init__(self, port: int, folder: Path) -> None:
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        self.command = [*command, "--appendonly", "yes", "--appendfsync", "always"]
        self.port = port
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=20)

    def __exit__(self, *_: object) -> None:
        self.kill()


@pytest.fixture
def durable(tmp_path: Path, redis_port: int) -> Iterator[DurableRedis]:
    with DurableRedis(free_port(), tmp_path) as running_server:
        yield running_server


def opened(port: int, told: list[str] | None = None, patience: float = 20.0) -> Store:
    tell = (lambda _: None) if told is None else told.append
    return open_store(f"redis://127.0.0.1:{port}/0", secret=KEY, tell=tell, patience=patience)


def test_nothing_is_lost_or_doubled_when_the_server_is_killed(durable: DurableRedis) -> None:
    url, each = f"redis://127.0.0.1:{durable.port}/0", 300
    with running(url, [COUNT] * 3, str(each)) as started:
        for _ in range(3):
            time.sleep(0.15)
            durable.kill()
            durable.start()
        assert [printed(process) for process in started] == [[]] * 3
    assert opened(durable.port).read("totals", "count") == Entry(3 * each, 3 * each)


def test_an_outage_is_told_once_and_its_end(durable: DurableRedis) -> None:
    told: list[str] = []
    store = opened(durable.port, told)
    assert store.write("findings", "a", 1, version=0)
    assert told == []  # what is kept on disk is no matter
    durable.kill()
    threading.Timer(0.5, durable.start).start()
    assert store.read("findings", "a") == Entry(1, 1)
    assert store.write("findings", "a", 2, version=1)
    place = re.escape(f"The store at 127.0.0.1:{durable.port}/0 (campaign default)")
    assert len(told) == 2
    assert re.match(
        rf"{place} does not answer: the server cannot be reached: .* It is waited for, up to 20 s\.", told[0]
    )
    assert re.match(rf"{place} answers again, after [01] s\.", told[1])


def test_a_dropped_connection_is_no_outage(url: str) -> None:
    told: list[str] = []
    store = open_store(url, secret=KEY, tell=told.append)
    told.clear()
    store.write("findings", "a", 1, version=0)
    store._backend._redis.client.connection_pool.disconnect()  # type: ignore[attr-defined]
    store._backend._redis.give_up()  # type: ignore[attr-defined]
    assert store.read("findings", "a") == Entry(1, 1)
    assert told == []


def test_patience_ends() -> None:
    begin = time.monotonic()
    with pytest.raises(StoreError, match=r"did not answer for 0 s: .*Is a Redis server running there"):
        opened(free_port(), patience=0.3)
    assert 0.25 < time.monotonic() - begin < 3


def test_closing_ends_waiting(durable: DurableRedis) -> None:
    told: list[str] = []
    store = opened(durable.port, told)
    durable.kill()
    threading.Timer(0.3, store.close).start()
    begin = time.monotonic()
    with pytest.raises(StoreError, match="was closed"):
        store.read("findings", "a")
    assert time.monotonic() - begin < 3
    with pytest.raises(StoreError, match="was closed"):
        store.read("findings", "a")


@pytest.mark.parametrize("state", ["refused", "silent"])
def test_an_interrupt_ends_waiting_and_the_store_goes_on(durable: DurableRedis, state: str) -> None:
    store = opened(durable.port)
    durable.kill() if state == "refused" else durable.process.send_signal(signal.SIGSTOP)
    timer = threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        store.read("findings", "a")
    assert time.monotonic() - begin < 3
    durable.start() if state == "refused" else durable.process.send_signal(signal.SIGCONT)
    assert store.write("findings", "a", 1, version=0)


@pytest.fixture
def lossy(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], object]], None]:
    """Have the reply to the next question with so many keys lost, and something done before it is asked again."""

    def lose(keys: int, act: Callable[[], object]) -> None:
        original = UntrustedRedis.ask

        def ask(self: UntrustedRedis, question: Callable[[object], object]) -> object:
            counted: list[int] = []

            class Counting:
                def eval(self_, script: str, number: int, *arguments: object) -> object:
                    counted.append(number)
                    return self.client.eval(script, number, *arguments)

                def __getattr__(self_, name: str) -> object:
                    return getattr(self.client, name)

            answer = original(self, lambda _: question(Counting()))
            if counted == [keys]:
                monkeypatch.setattr(UntrustedRedis, "ask", original)
                act()
                raise server.ServerError("lost")
            return answer

        monkeypatch.setattr(UntrustedRedis, "ask", ask)

    return lose


@pytest.mark.parametrize("later", [0, 1, 20])
def test_a_write_whose_reply_was_lost_counts_once(
    url: str, lossy: Callable[[int, Callable[[], object]], None], later: int
) -> None:
    store, other = (open_store(url, secret=KEY, tell=lambda _: None) for _ in range(2))
    store.write("totals", "count", 0, version=0)

    def act() -> None:
        assert all(other.write("totals", "count", 1 + one, version=1 + one) for one in range(1, later + 1))

    lossy(3, act)
    assert store.write("totals", "count", 1, version=1)
    assert store.read("totals", "count") == Entry(1 + later, 2 + later)


def test_a_write_that_came_too_late_fails_though_its_reply_was_lost(
    url: str, lossy: Callable[[int, Callable[[], object]], None]
) -> None:
    store, other = (open_store(url, secret=KEY, tell=lambda _: None) for _ in range(2))
    store.write("totals", "count", 0, version=0)
    other.write("totals", "count", "other", version=1)
    lossy(3, lambda: None)
    assert not store.write("totals", "count", 1, version=1)
    assert store.read("totals", "count") == Entry("other", 2)


def test_a_number_whose_reply_was_lost_is_given_again(
    url: str, lossy: Callable[[int, Callable[[], object]], None]
) -> None:
    store = open_store(url, secret=KEY, tell=lambda _: None)
    lossy(2, lambda: store.next_number("program", "b"))
    assert store.next_number("program", "a") == 0
    assert [store.next_number("program", token) for token in "bac"] == [1, 0, 2]


def test_tokens_are_forgotten_at_some_time(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REMEMBERED", 3)
    store = open_store(url, secret=KEY, tell=lambda _: None)
    assert [store.next_number("program", str(index)) for index in range(5)] == list(range(5))
    assert [store.next_number("program", str(index)) for index in (2, 3, 4, 1)] == [2, 3, 4, 5]


EVIL: dict[str, Reply] = {
    "integer": b":5\r\n",
    "text": b"+OK\r\n",
    "nothing": b"$-1\r\n",
    "array": b"*3\r\n:1\r\n:2\r\n:3\r\n",
    "too many": b"*2\r\n$1\r\na\r\n$1\r\nb\r\n",
    "nested": b"*1\r\n" * 5000 + b":1\r\n",
    "garbage": b"HTTP/1.1 200 OK\r\n\r\n",
    "half": then_hang_up(b"*1\r\n$100\r\nab"),
    "hangs up": hang_up,
    "silent": silent,
    "slow": dribble(b"*1\r\n", 0.02),
    "endless": endless(b"*1\r\n$999999999999\r\n", b"x" * 65536),
}


@pytest.mark.parametrize("kind", EVIL)
def test_a_server_that_answers_nonsense_is_given_up_in_time(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "TIMEOUT_SECONDS", 0.2)
    with EvilRedis({b"HEXISTS": b":0\r\n", b"EVAL": EVIL[kind]}) as evil:
        begin = time.monotonic()
        with pytest.raises(StoreError, match="did not answer for 0 s"):
            opened(evil.port, patience=0.4)
        assert time.monotonic() - begin < 5
        assert evil.clients_gone(5)


@pytest.mark.parametrize(
    ("refusal", "final"),
    [
        (b"-NOAUTH Authentication required.\r\n", True),
        (b"-NOPERM this user has no permissions\r\n", True),
        (b"-WRONGTYPE Operation against a key\r\n", True),
        (b"-ERR unknown command 'EVAL'\r\n", True),
        (b"-LOADING Redis is loading the dataset in memory\r\n", False),
        (b"-READONLY You can't write against a read only replica.\r\n", False),
        (b"-OOM command not allowed when used memory > 'maxmemory'.\r\n", False),
        (b"-MISCONF Redis is configured to save RDB snapshots\r\n", False),
        (b"-BUSY Redis is busy running a script.\r\n", False),
        (b"-MASTERDOWN Link with MASTER is down\r\n", False),
    ],
    ids=lambda value: value.split()[0][1:].decode() if isinstance(value, bytes) else "",
)
def test_a_refusal_for_good_is_not_waited_for(refusal: bytes, final: bool) -> None:
    with EvilRedis({b"HEXISTS": b":0\r\n", b"EVAL": refusal}) as evil:
        begin = time.monotonic()
        with pytest.raises(StoreError, match="cannot be used" if final else "did not answer for 0 s"):
            opened(evil.port, patience=30 if final else 0.2)
        assert time.monotonic() - begin < 5


def test_what_is_lost_with_the_server_is_told(redis_port: int) -> None:
    told: list[str] = []
    opened(redis_port, told).close()
    assert [one for one in told if "keeps nothing on disk" in one] == told != []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, ""),
        ({"appendonly": "yes", "save": ""}, ""),
        ({"appendonly": "no", "save": "3600 1"}, ""),
        ({"appendonly": "no", "save": ""}, "`appendonly yes`"),
        ({"maxmemory": "0", "maxmemory-policy": "allkeys-lru"}, ""),
        ({"maxmemory": "100", "maxmemory-policy": "noeviction"}, ""),
        ({"maxmemory": "100", "maxmemory-policy": "allkeys-lru"}, "`maxmemory-policy noeviction`"),
    ],
)
def test_settings_that_lose_entries_are_told(
    url: str, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], said: str
) -> None:
    told: list[str] = []
    monkeypatch.setattr(server.RedisBackend, "configuration", lambda _: settings)
    open_store(url, secret=KEY, tell=told.append).close()
    assert [said in one for one in told] == [True] * bool(said)


def test_where_settings_are_not_told_nothing_is_said() -> None:
    with EvilRedis({b"EVAL": b"*0\r\n", b"CONFIG": b"-NOPERM no permission\r\n"}) as evil:
        backend = open_backend(evil.port)
        assert backend.configuration() == {}
        assert backend.listed("findings") == {}
        backend.close()


def open_backend(port: int) -> server.RedisBackend:
    import redis

    from pytest_regional.fuzz.store.documents import Documents

    documents = Documents(KEY, "here", "c", lambda *_: None)
    return server.RedisBackend(
        lambda: UntrustedRedis(redis.Redis(port=port), 5), documents, campaign="c", patience=5, tell=lambda _: None
    )
