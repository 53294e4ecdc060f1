"""Entries on this machine: several to a key, broken ones replaced, never an exception."""

from __future__ import annotations

import os
import threading
import warnings
from pathlib import Path

import pytest

from pytest_regional.reference import CacheWarning
from pytest_regional.reference.caching import container
from pytest_regional.reference.caching.container import TargetFingerprint
from pytest_regional.reference.caching.store import LocalStore, Store, default_folder, open_store
from tests.caching.conftest import Become
from tests.faults.caching.trials import flipped
from tests.faults.caching.writer import payload

pytestmark = pytest.mark.usefixtures("become")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def _entries(store: LocalStore, key: str = "ab") -> list[Path]:
    return sorted((store.folder / key).iterdir())


def test_entries_of_a_key_come_back_in_one_order(store: LocalStore) -> None:
    assert all(store.save("ab", b"%d" % number) for number in range(5))
    assert store.save("cd", b"other")
    found = list(store.candidates("ab"))
    assert sorted(found) == [b"%d" % number for number in range(5)]
    assert list(LocalStore(store.folder).candidates("ab")) == found
    assert sorted(path.name for path in store.folder.iterdir() if path.name != "tmp") == ["ab", "cd"]


def test_an_empty_store_has_nothing_and_makes_nothing(store: LocalStore) -> None:
    assert (list(store.candidates("ab")), store.folder.exists()) == ([], False)


def test_equal_payloads_are_one_file(store: LocalStore) -> None:
    assert store.save("ab", b"same")
    assert store.save("ab", b"same")
    assert len(_entries(store)) == 1


@pytest.mark.parametrize("key", ["", "../x", "AB", "xyz", "ab/cd", "a" * 129, "ab\n"])
def test_a_key_that_is_no_hash_is_refused(store: LocalStore, key: str) -> None:
    with pytest.raises(ValueError, match="is not a cache key"):
        store.save(key, b"")
    with pytest.raises(ValueError, match="is not a cache key"):
        list(store.candidates(key))


def test_a_broken_entry_is_one_warning_and_replaced_by_the_next_save(store: LocalStore) -> None:
    for number in range(3):
        store.save("ab", payload(number, 800))
    path = _entries(store)[0]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(CacheWarning, match=rf"was removed, and is compiled again: {path} is truncated") as said:
        assert [len(list(store.candidates("ab"))) for _ in range(2)] == [2, 2]
    assert len(said) == 1
    assert path not in _entries(store)
    for number in range(3):
        store.save("ab", payload(number, 800))
    assert len(list(store.candidates("ab"))) == 3


def test_a_bit_flipped_anywhere_in_an_entry_is_a_miss_and_one_warning(store: LocalStore) -> None:
    store.save("ab", b"payload")
    path = _entries(store)[0]
    whole = path.read_bytes()
    for position, data in flipped(whole, range(len(whole))):
        path.write_bytes(data)
        with pytest.warns(CacheWarning) as said:
            assert list(store.candidates("ab")) == [], position
        assert len(said) == 1
    assert len(whole) > 200


def test_an_entry_from_elsewhere_is_replaced(store: LocalStore, become: Become) -> None:
    store.save("ab", b"payload")
    become(TargetFingerprint(*"ABCDEF"))
    with pytest.warns(CacheWarning, match="was compiled by torch torch"):
        assert list(store.candidates("ab")) == []
    assert store.save("ab", b"payload")
    assert list(store.candidates("ab")) == [b"payload"]


def test_an_entry_copied_under_another_key_is_a_miss(store: LocalStore) -> None:
    store.save("ab", b"payload")
    (store.folder / "ab").rename(store.folder / "cd")
    with pytest.warns(CacheWarning, match="belongs to the key ab, not to cd"):
        assert list(store.candidates("cd")) == []


def test_a_folder_in_an_entrys_place_is_a_miss(store: LocalStore) -> None:
    store.save("ab", b"payload")
    path = _entries(store)[0]
    path.unlink()
    (path / "below").mkdir(parents=True)
    with pytest.warns(CacheWarning, match="is a directory"):
        assert list(store.candidates("ab")) == []
    assert store.save("ab", b"payload")
    assert list(store.candidates("ab")) == [b"payload"]


def test_an_entry_replaced_while_it_was_found_broken_is_kept(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process saves between this one's reading of a broken entry and its removal."""
    store.save("ab", b"payload")
    path = _entries(store)[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    rename = os.rename

    def save_first(source: Path, target: Path) -> None:
        path.write_bytes(whole)
        rename(source, target)

    monkeypatch.setattr(os, "rename", save_first)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(store.candidates("ab")) == [b"payload"]
    assert _entries(store) == [path]


def test_an_entry_removed_by_another_process_first_is_not_warned_of_twice(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save("ab", b"payload")
    _entries(store)[0].write_bytes(b"broken")

    def gone(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(os, "rename", gone)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(store.candidates("ab")) == []


def test_an_entry_that_cannot_be_read_now_is_kept(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save("ab", b"payload")

    def too_many(path: Path) -> bytes:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("pytest_regional.reference.caching.store.read_private", too_many)
        with pytest.warns(CacheWarning, match="Too many open files") as said:
            assert [list(store.candidates("ab")) for _ in range(2)] == [[], []]
    assert len(said) == 1
    assert list(store.candidates("ab")) == [b"payload"]


@pytest.mark.parametrize("place", ["", "ab"])
def test_an_unsafe_folder_is_one_warning_each_way(store: LocalStore, place: str) -> None:
    store.save("ab", b"payload")
    (store.folder / place).chmod(0o777)
    with pytest.warns(CacheWarning, match="No compiled results are loaded.*chmod") as said:
        assert [list(store.candidates("ab")) for _ in range(2)] == [[], []]
    assert len(said) == 1
    with pytest.warns(CacheWarning, match="are not saved.*chmod") as said:
        assert [store.save("ab", b"%d" % number) for number in range(2)] == [False, False]
    assert len(said) == 1
    (store.folder / place).chmod(0o700)
    assert list(store.candidates("ab")) == [b"payload"]


def test_a_file_in_the_stores_place_is_one_warning(store: LocalStore) -> None:
    store.folder.write_text("")
    assert list(store.candidates("ab")) == []
    with pytest.warns(CacheWarning, match="are not saved.*is not a directory") as said:
        assert [store.save("ab", b"") for _ in range(2)] == [False, False]
    assert len(said) == 1


def test_a_folder_that_cannot_be_listed_is_one_warning(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save("ab", b"payload")

    def denied(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.warns(CacheWarning, match="No compiled results are loaded.*Permission denied") as said:
        assert [list(store.candidates("ab")) for _ in range(2)] == [[], []]
    assert len(said) == 1


def test_warnings_are_said_again_once_forgotten(store: LocalStore) -> None:
    store.folder.write_text("")
    for _ in range(2):
        with pytest.warns(CacheWarning):
            store.save("ab", b"")
        container.reset_warnings()


def test_threads_lose_nothing(store: LocalStore) -> None:
    def save(first: int) -> None:
        for number in range(25):
            assert store.save("ab", payload(first * 100 + number, 8_000))
            assert len(list(store.candidates("ab"))) > number

    threads = [threading.Thread(target=save, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(store.candidates("ab"))) == 100


def test_the_default_folder_follows_inductors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("one", "two"):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / name))
        assert default_folder() == tmp_path / name / "regional"
        opened = open_store()
        assert isinstance(opened, Store)
        assert opened.save("ab", name.encode())
        assert list(LocalStore(tmp_path / name / "regional").candidates("ab")) == [name.encode()]
        assert opened.remote is None
