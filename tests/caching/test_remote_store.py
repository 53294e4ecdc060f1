"""Entries that machines share: who may write them, and what a server that fails costs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from pytest_regional.reference import CacheWarning
from pytest_regional.reference.caching import container
from pytest_regional.reference.caching import store as stores
from pytest_regional.reference.caching.container import KIND, TargetFingerprint
from pytest_regional.reference.caching.store import Link, LocalStore, RemoteStore, Store, open_remote_store, sign
from tests.caching.conftest import Become
from tests.faults.caching.trials import flipped

SECRET = b"a secret"


class Server:
    """What a remote cache is to the store: bytes by name."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.questions = 0

    def get(self, name: str) -> bytes | None:
        self.questions += 1
        return self.values.get(name)

    def put(self, name: str, data: bytes) -> None:
        self.questions += 1
        self.values[name] = data


pytestmark = pytest.mark.usefixtures("become")


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def store(server: Server) -> RemoteStore:
    return _store(server)


def _store(server: Server, secret: bytes = SECRET) -> RemoteStore:
    return RemoteStore(Link("here:1", lambda: server), secret)


def _missed(store: RemoteStore, key: str, message: str) -> None:
    """It is a miss each time, and one warning."""
    with pytest.warns(CacheWarning, match=message) as said:
        assert [list(store.candidates(key)) for _ in range(2)] == [[], []]
    assert len(said) == 1


@pytest.mark.usefixtures("quiet")
def test_entries_come_back_to_everybody_with_the_secret(store: RemoteStore, server: Server) -> None:
    assert [store.save("ab", payload) for payload in (b"one", b"two", b"one")] == [True] * 3
    assert store.save("cd", b"three")
    other = _store(server)
    assert [list(other.candidates(key)) for key in ("ab", "cd", "ef")] == [[b"one", b"two"], [b"three"], []]
    assert len(server.values) == 3


def test_a_miss_is_one_question_and_a_save_two(store: RemoteStore, server: Server) -> None:
    assert list(store.candidates("ab")) == []
    assert server.questions == 1
    store.save("ab", b"one")
    assert server.questions == 3


def test_a_key_with_many_entries_takes_one_more_in_place_of_another(store: RemoteStore, server: Server) -> None:
    payloads = [b"%d" % number for number in range(stores.PLACES + 3)]
    assert all(store.save("ab", payload) for payload in payloads)
    assert len(server.values) == stores.PLACES
    assert payloads[-1] in list(store.candidates("ab"))


@pytest.mark.parametrize("key", ["", "../x", "AB"])
def test_a_key_that_is_no_hash_is_refused(store: RemoteStore, key: str) -> None:
    with pytest.raises(ValueError, match="is not a cache key"):
        store.save(key, b"")
    with pytest.raises(ValueError, match="is not a cache key"):
        list(store.candidates(key))


def test_a_forged_entry_is_a_miss(store: RemoteStore, server: Server) -> None:
    _store(server, b"a guess").save("ab", b"evil")
    _missed(store, "ab", "not signed with this process's secret: forged")


def test_an_unsigned_entry_is_a_miss(store: RemoteStore, server: Server) -> None:
    _store(server, b"").save("ab", b"evil")
    _missed(store, "ab", "not signed")


def test_an_entry_replayed_under_another_key_is_a_miss(store: RemoteStore, server: Server) -> None:
    """Twice refused: by the signature, and, signed anew by who has the secret, by the key inside."""
    for key in ("ab", "cd", "ef"):
        store.save(key, b"payload")
    of_ab, of_cd, of_ef = server.values
    server.values[of_cd] = server.values[of_ab]
    _missed(store, "cd", "not signed.*moved from another key")
    sealed = container.seal(b"payload", kind=KIND, key="ab")
    server.values[of_ef] = sign(sealed, key="ef", secret=SECRET)
    _missed(store, "ef", "belongs to the key ab, not to ef")


def test_an_entry_cut_anywhere_is_a_miss(store: RemoteStore, server: Server) -> None:
    store.save("ab", b"payload")
    ((name, whole),) = server.values.items()
    for length in range(len(whole)):
        server.values[name] = whole[:length]
        container.reset_warnings()
        _missed(store, "ab", "not signed")


def test_a_bit_flipped_anywhere_is_a_miss(store: RemoteStore, server: Server) -> None:
    store.save("ab", b"payload")
    ((name, whole),) = server.values.items()
    for _, data in flipped(whole, range(len(whole))):
        server.values[name] = data
        container.reset_warnings()
        _missed(store, "ab", "not signed")


def test_a_refused_entry_is_replaced_by_the_next_save_and_hides_no_other(store: RemoteStore, server: Server) -> None:
    store.save("ab", b"one")
    store.save("ab", b"two")
    first, _ = server.values
    server.values[first] = b"broken"
    with pytest.warns(CacheWarning, match="not signed"):
        assert list(store.candidates("ab")) == [b"two"]
    store.save("ab", b"three")
    assert list(store.candidates("ab")) == [b"three", b"two"]


def test_an_entry_from_another_torch_is_a_miss(store: RemoteStore, become: Become) -> None:
    store.save("ab", b"payload")
    become(TargetFingerprint(*"ABCDEF"))
    _missed(store, "ab", "compiled by torch torch")


@pytest.mark.usefixtures("quiet")
def test_trust_by_name_takes_signed_and_unsigned(server: Server) -> None:
    trusting = _store(server, b"")
    trusting.save("ab", b"unsigned")
    _store(server).save("cd", b"signed")
    assert [list(trusting.candidates(key)) for key in ("ab", "cd")] == [[b"unsigned"], [b"signed"]]


def test_trust_by_name_still_wants_whole_entries(server: Server) -> None:
    store = _store(server, b"")
    store.save("ab", b"payload")
    ((name, whole),) = server.values.items()
    server.values[name] = whole[:-1]
    _missed(store, "ab", "is truncated")


def test_the_local_store_is_first_and_learns_from_the_remote_one(tmp_path: Path, server: Server) -> None:
    first, second = (Store(LocalStore(tmp_path / name), _store(server)) for name in ("first", "second"))
    assert first.save("ab", b"payload")
    assert list(second.candidates("ab")) == [b"payload"]
    server.values.clear()
    assert list(second.candidates("ab")) == [b"payload"]


def test_a_local_entry_needs_no_server(tmp_path: Path, server: Server) -> None:
    store = Store(LocalStore(tmp_path / "store"), _store(server))
    store.save("ab", b"payload")
    asked = server.questions
    assert next(store.candidates("ab")) == b"payload"
    assert server.questions == asked


def test_an_entry_in_both_stores_is_offered_once(tmp_path: Path, server: Server) -> None:
    store = Store(LocalStore(tmp_path / "store"), _store(server))
    store.save("ab", b"both")
    _store(server).save("ab", b"remote only")
    assert list(store.candidates("ab")) == [b"both", b"remote only"]


def test_a_save_that_only_the_server_takes_is_a_save(tmp_path: Path, server: Server) -> None:
    (tmp_path / "store").write_text("in the way")
    local = LocalStore(tmp_path / "store")
    with pytest.warns(CacheWarning, match="are not saved"):
        assert [Store(local, remote).save("ab", b"payload") for remote in (_store(server), None)] == [True, False]


class Failing(Server):
    def get(self, name: str) -> bytes | None:
        self.questions += 1
        raise ConnectionResetError("gone")


def test_a_failing_server_is_asked_once_a_minute_and_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    server = Failing()
    connections = []
    link = Link("here:1", lambda: connections.append(server) or server)  # type: ignore[func-returns-value]
    store = RemoteStore(link, SECRET)

    def ask_after(seconds: float) -> tuple[int, int]:
        now[0] += seconds
        assert list(store.candidates("ab")) == []
        assert not store.save("ab", b"")
        return server.questions, len(connections)

    with pytest.warns(CacheWarning, match="here:1 is not used for 60 s.*ConnectionResetError: gone") as said:
        assert [ask_after(seconds) for seconds in (0, 1, 58, 2, 59)] == [(1, 1), (1, 1), (1, 1), (2, 2), (2, 2)]
    assert len(said) == 1


def test_a_failing_server_leaves_the_local_store(tmp_path: Path) -> None:
    store = Store(LocalStore(tmp_path / "store"), _store(Failing()))
    with pytest.warns(CacheWarning) as said:
        assert (store.save("ab", b"payload"), list(store.candidates("ab"))) == (True, [b"payload"])
    assert len(said) == 1


def test_errors_not_from_the_server_are_not_hidden(store: RemoteStore) -> None:
    with pytest.raises(ZeroDivisionError):
        store.link.ask(lambda server: 1 / 0)


@pytest.mark.usefixtures("quiet")
def test_nothing_is_shared_unless_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(stores.SECRET, "a secret")
    assert open_remote_store() is None


def is_wanted(environment: dict[str, str]) -> bool:
    return open_remote_store({stores.SECRET: "a secret", **environment}) is not None


@pytest.mark.parametrize("name", ["TORCHINDUCTOR_REDIS_HOST", "TORCHINDUCTOR_REDIS_URL"])
def test_a_named_server_is_asked(name: str) -> None:
    assert is_wanted({name: "redis://cache"})
    assert not is_wanted({name: ""})


def test_pytorchs_settings_turn_it_on_and_off() -> None:
    named = {"TORCHINDUCTOR_REDIS_HOST": "cache"}
    with torch._inductor.config.patch(fx_graph_remote_cache=True):
        assert is_wanted({})
        with torch._functorch.config.patch(enable_remote_autograd_cache=False):
            assert not is_wanted(named)
    with torch._inductor.config.patch(fx_graph_remote_cache=False):
        assert is_wanted(named)
    with torch._functorch.config.patch(enable_remote_autograd_cache=True):
        assert is_wanted({})


@pytest.mark.parametrize("said", ["", "yes", "1"])
def test_without_a_secret_nothing_is_shared(environment: pytest.MonkeyPatch, said: str) -> None:
    environment.delenv(stores.SECRET)
    environment.setenv(stores.UNAUTHENTICATED, said)
    message = "no secret.*PYTEST_REGIONAL_CACHE_SECRET.*PYTEST_REGIONAL_CACHE_UNAUTHENTICATED=allow"
    with pytest.warns(CacheWarning, match=message) as warned:
        assert [open_remote_store() for _ in range(2)] == [None, None]
    assert len(warned) == 1


def test_without_the_package_nothing_is_shared(environment: pytest.MonkeyPatch) -> None:
    environment.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.warns(CacheWarning, match=r"pip install 'pytest-regional\[redis\]'") as warned:
        assert [open_remote_store() for _ in range(2)] == [None, None]
    assert len(warned) == 1


@pytest.mark.parametrize(
    ("variables", "address"),
    [
        ({}, "localhost:6379"),
        ({"TORCHINDUCTOR_REDIS_HOST": "cache", "TORCHINDUCTOR_REDIS_PORT": "1"}, "cache:1"),
        ({"TORCHINDUCTOR_REDIS_URL": "redis://me:password@cache:2/3"}, "redis://***@cache:2/3"),
        ({"TORCHINDUCTOR_REDIS_URL": "unix:///run/redis.sock"}, "unix:///run/redis.sock"),
    ],
)
def test_the_address_in_messages_holds_no_password(variables: dict[str, str], address: str) -> None:
    assert stores.address(variables) == address


def test_signatures_stay_as_they_are() -> None:
    """Machines with different releases share a server."""
    digest = "957f6a8949764ed9664fedb7714ca4832eb947a8163ca556f436ebd7235bc40f"
    assert sign(b"sealed", key="ab", secret=SECRET).hex() == digest + b"sealed".hex()
