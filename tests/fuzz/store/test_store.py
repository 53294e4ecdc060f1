"""What a store does, wherever it is."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from pytest_regional.fuzz.store import Entry, EntryError, Store, StoreError
from tests.fuzz.store.conftest import Opener


def test_an_entry_is_read_as_it_was_written(store: Store, opened: Opener) -> None:
    data = {"text": "grün \ud800 \n", "numbers": [1, -2.5, 10**15, True, None], "nested": {"": [[], {}]}}
    assert store.read("findings", "a") is None
    assert store.write("findings", "a", data, version=0)
    assert store.read("findings", "a") == opened().read("findings", "a") == Entry(data, 1)


def test_only_who_saw_the_newest_version_can_write(store: Store, opened: Opener) -> None:
    other = opened()
    assert store.write("workers", "w.1-a", 1, version=0)
    assert not other.write("workers", "w.1-a", "other", version=0)
    assert other.write("workers", "w.1-a", 2, version=1)
    assert not store.write("workers", "w.1-a", "late", version=1)
    assert not store.write("workers", "w.1-a", "early", version=3)
    assert not store.write("workers", "w.1-a", "new", version=0)
    assert [one.read("workers", "w.1-a") for one in (store, other, opened())] == [Entry(2, 2)] * 3


def test_an_entry_that_never_was_has_no_second_version(store: Store) -> None:
    assert not store.write("workers", "w", 1, version=1)
    assert store.names("workers") == {}


def test_entries_leave_out_what_is_known(store: Store, opened: Opener) -> None:
    for name in "abc":
        assert store.write("findings", name, name.upper(), version=0)
    assert store.entries("findings") == {name: Entry(name.upper(), 1) for name in "abc"}
    assert opened().write("findings", "b", "B2", version=1)
    assert store.entries("findings", {"a": 1, "b": 1}) == {"b": Entry("B2", 2), "c": Entry("C", 1)}
    assert store.entries("findings", {"a": 1, "b": 2, "c": 1}) == {}
    assert store.names("findings") == opened().names("findings") == {"a": 1, "b": 2, "c": 1}
    assert store.entries("claims") == store.names("claims") == {}


def test_a_deleted_entry_keeps_its_versions(store: Store, opened: Opener) -> None:
    fenced = opened()
    assert store.write("workers", "w", "alive", version=0)
    assert fenced.read("workers", "w") == Entry("alive", 1)
    assert store.write("workers", "w", None, version=1)
    assert not fenced.write("workers", "w", "still alive", version=1)
    for one in (store, fenced, opened()):
        assert one.read("workers", "w") == Entry(None, 2)
        assert one.entries("workers") == one.names("workers") == {}
    assert opened().write("workers", "w", "again", version=0)
    assert not fenced.write("workers", "w", "twice", version=0)
    assert not fenced.write("workers", "w", "late", version=2)
    assert store.entries("workers") == {"w": Entry("again", 3)}
    assert store.names("workers") == opened().names("workers") == {"w": 3}


def test_deletions_are_not_fetched_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write("claims", "a", 1, version=0)
    store.write("claims", "a", None, version=1)
    fetched: list[list[str]] = []
    fetch = store._backend.fetch
    monkeypatch.setattr(store._backend, "fetch", lambda t, names: fetched.append(list(names)) or fetch(t, names))
    assert store.entries("claims") == store.entries("claims") == store.names("claims") == {}
    assert [names for names in fetched if names] == [["a"]]


def test_names_fetch_what_has_changed_alone(store: Store, opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        store.write("workers", name, 1, version=0)
    reader = opened()
    assert reader.names("workers") == {"a": 1, "b": 1, "c": 1}
    store.write("workers", "b", 2, version=1)
    fetched: list[str] = []
    fetch = reader._backend.fetch
    monkeypatch.setattr(
        reader._backend, "fetch", lambda t, names: fetch(t, [name for name in names if not fetched.append(name)])
    )
    assert reader.names("workers") == {"a": 1, "b": 2, "c": 1}
    assert fetched == ["b"]


def test_numbers_are_given_once_and_to_a_token_again(store: Store, opened: Opener) -> None:
    other = opened()
    assert [store.next_number("batches-2.11", "a"), other.next_number("batches-2.11", "b")] == [0, 1]
    assert [other.next_number("program", "a"), opened().next_number("program", "b")] == [0, 1]
    assert store.next_number("program", "c") == 2
    assert store.next_number("mutant", "a") == 0


@pytest.mark.parametrize(
    ("table", "name"),
    [
        *((table, "a") for table in ("", "A", "../a", "a" * 70, "a1", "a\n", None)),
        *(("a", name) for name in ("", ".", "..", "a/b", "a b", "a\n", "-a", "ä", "a" * 152, None)),
    ],
)
def test_other_names_are_refused(store: Store, table: Any, name: Any) -> None:
    for ask in (lambda: store.read(table, name), lambda: store.write(table, name, 1, version=0)):
        with pytest.raises(EntryError, match=r"names no (table|entry)"):
            ask()


@pytest.mark.parametrize(("counter", "token"), [("a/b", "a"), ("a" * 150, "a"), ("a b", "a"), ("a", ""), ("a", "../a")])
def test_other_names_of_counters_and_tokens_are_refused(store: Store, counter: str, token: str) -> None:
    with pytest.raises(ValueError, match="names no entry"):
        store.next_number(counter, token)


def test_the_longest_names_are_kept(store: Store, opened: Opener) -> None:
    table, name = "t" + "_" * 60, "A" + ".-_z" * 37 + "90"
    assert store.write(table, name, 1, version=0)
    assert store.write(table, name, 2, version=1)
    assert opened().entries(table) == {name: Entry(2, 2)}
    assert store.next_number(table, name) == 0


def test_names_that_look_like_versions_are_kept(store: Store, opened: Opener) -> None:
    names = ["a", "a.1", "a.1.0123456789abcdef", "a.2", "0"]
    for name in names:
        assert store.write("findings", name, name, version=0)
    assert opened().entries("findings") == {name: Entry(name, 1) for name in names}
    assert store.write("findings", "a.1", "new", version=1)
    assert opened().read("findings", "a") == Entry("a", 1)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (float("nan"), "is no JSON"),
        ([float("inf")], "is no JSON"),
        ({"a": {1, 2}}, "is no JSON"),
        (b"bytes", "is no JSON"),
        ({1: 2}, "read as something else"),
        ((1, 2), "read as something else"),
        (10**30, "an integer of 31 digits"),
        ("x" * 5_000_000, r"5,000,0\d\d bytes"),
    ],
    ids=["NaN", "infinity", "set", "bytes", "integer keys", "tuple", "integer", "large"],
)
def test_other_data_is_refused(store: Store, data: Any, said: str) -> None:
    with pytest.raises(EntryError, match=said):
        store.write("findings", "a", data, version=0)
    assert store.read("findings", "a") is None


def test_data_without_a_floor_is_refused(store: Store) -> None:
    data: list[Any] = []
    data.append(data)
    with pytest.raises(EntryError, match="is no JSON: Circular reference"):
        store.write("findings", "a", data, version=0)
    for _ in range(100_000):
        data = [data]
    with pytest.raises(EntryError, match="nested too deeply"):
        store.write("findings", "a", data, version=0)


@pytest.mark.parametrize("version", [-1, 1.0, True, "1", None])
def test_other_versions_are_refused(store: Store, version: Any) -> None:
    with pytest.raises(EntryError, match="is no version"):
        store.write("findings", "a", 1, version=version)


def test_the_stores_own_table_is_only_read(store: Store) -> None:
    with pytest.raises(EntryError, match="by the store itself"):
        store.write("store", "format", {"number": 9}, version=0)
    store.write("findings", "a", 1, version=0)
    assert store.read("store", "format") == Entry({"number": 1}, 1)


def test_a_store_of_another_format_is_refused(store: Store, opened: Opener) -> None:
    assert store._write("store", "format", {"number": 2}, 0)
    with pytest.raises(StoreError, match="has format 2; this release reads format 1"):
        opened()
    with pytest.raises(StoreError, match="has format 2"):  # opened before that was written
        store.write("findings", "a", 1, version=0)


@pytest.mark.parametrize("times", [1, 2])
def test_a_store_that_is_begun_meanwhile_is_no_others(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    slow, fast = opened(), opened()
    original, left = slow._backend.is_taken, [None] * times

    def is_taken(table: str, name: str) -> bool:
        found = original(table, name)
        left.pop()
        if not left:
            monkeypatch.undo()
            assert fast.write("findings", "a", 1, version=0)
        return found

    monkeypatch.setattr(slow._backend, "is_taken", is_taken)
    assert times == 1 or not slow._has_format()
    assert slow.write("findings", "b", 1, version=0)
    assert opened().names("findings") == {"a": 1, "b": 1}


def test_a_large_entry_is_kept(store: Store, opened: Opener) -> None:
    text = "x" * 4_000_000
    assert store.write("findings", "a", text, version=0)
    assert store.write("findings", "b", text, version=0)
    assert {name: len(entry.data) for name, entry in opened().entries("findings").items()} == dict.fromkeys(
        "ab", 4_000_000
    )


def test_nothing_is_told_of_what_is_well(store: Store, opened: Opener, told: list[str]) -> None:
    for version in range(3):
        assert store.write("findings", "a", version, version=version)
        assert opened().write("findings", f"b{version}", version, version=0)
    assert len(opened().entries("findings")) == 4
    assert [message for message in told if "keeps nothing on disk" not in message] == []


def test_torch_is_not_imported() -> None:
    program = "import sys, pytest_regional.fuzz.store; print('torch' in sys.modules, 'redis' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
