"""A store in a folder: its files, what killed writers leave, and processes that slept between two steps."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_regional.fuzz.store import Entry, Store, StoreError, folder, open_store
from tests.fuzz.store.conftest import KEY, Opener


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "campaign")


def files(url: str, part: str = "", table: str = "workers") -> list[str]:
    return sorted(path.name for path in Path(url, table, part).glob("*"))


def before(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], object]) -> None:
    """Do something once, the next time that this process calls ``os.NAME``."""
    original = getattr(os, name)

    def call(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(os, name, original)
        act()
        return original(*args, **options)

    monkeypatch.setattr(os, name, call)


def increments(store: Store, times: int) -> None:
    for _ in range(times):
        entry = store.read("workers", "w")
        assert entry is not None
        assert store.write("workers", "w", entry.data + 1, version=entry.version)


def test_nothing_is_made_by_reading(url: str, store: Store) -> None:
    assert store.read("workers", "w") is None
    assert store.entries("workers") == {}
    assert not Path(url).exists()


def test_one_file_and_one_document_an_entry_stay(url: str, store: Store) -> None:
    store.write("workers", "w", 0, version=0)
    increments(store, 5)
    assert len(files(url, "now")) == len(files(url, "documents")) == 1
    assert files(url, "first") == ["w.0"]


def test_a_writer_that_slept_does_not_replace_what_came_meanwhile(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = opened(), opened()
    slow.write("workers", "w", 1, version=0)
    before(monkeypatch, "rename", lambda: increments(fast, 4))
    assert not slow.write("workers", "w", "stale", version=1)
    assert opened().read("workers", "w") == Entry(5, 5)
    assert len(files(slow.where, "documents")) == 1


@pytest.mark.parametrize("step", ["open", "link"])
def test_nor_does_one_that_creates(opened: Opener, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    slow, fast = opened(), opened()
    fast.write("workers", "other", 1, version=0)
    slow.write("workers", "another", 1, version=0)

    def act() -> None:
        fast.write("workers", "w", 1, version=0)
        increments(fast, 3)
        fast._backend.sweep("workers")

    before(monkeypatch, step, act)
    assert not slow.write("workers", "w", "stale", version=0)
    assert slow.read("workers", "w") == Entry(4, 4)
    assert files(slow.where, "first") == ["another.0", "other.0", "w.0"]
    assert len(files(slow.where, "now")) == 3


def test_a_reader_that_slept_reads_what_came_meanwhile(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = opened(), opened()
    fast.write("workers", "w", 1, version=0)
    original = folder.bytes_of
    for times in (3, 2, 1):

        def read(path: Path, most: int, times: int = times) -> bytes:
            if "documents" in path.parts:
                monkeypatch.setattr(folder, "bytes_of", original)
                increments(fast, times)
            return original(path, most)

        monkeypatch.setattr(folder, "bytes_of", read)
        assert slow.read("workers", "w") == fast.read("workers", "w")
    assert slow.read("workers", "w") == Entry(7, 7)


def test_a_listing_that_missed_an_entry_is_repeated(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened()
    store.write("workers", "w", 1, version=0)
    reader, original, missed = opened(), os.listdir, []

    def listdir(path: str) -> list[str]:
        names = original(path)
        if path.endswith("now") and len(missed) < 3:
            missed.append(names)
            return []
        return names

    monkeypatch.setattr(os, "listdir", listdir)
    assert reader.read("workers", "w") == Entry(1, 1)
    assert missed == [missed[0]] * 3


def test_a_lost_reply_of_nfs_is_no_failure(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server did it, and answered the second request, which the client sent for want of a reply."""
    for name, code in (("link", errno.EEXIST), ("rename", errno.ENOENT)):
        original = getattr(os, name)

        def call(source: str, target: str, original: Any = original, code: int = code) -> None:
            original(source, target)
            raise OSError(code, os.strerror(code), source, None, target)

        monkeypatch.setattr(os, name, call)
    assert store.write("workers", "w", 1, version=0)
    assert store.write("workers", "w", 2, version=1)
    assert store.read("workers", "w") == Entry(2, 2)


class Killed(BaseException):
    """What no code handles."""


@pytest.mark.parametrize("step", ["rename", "link", "unlink"])
def test_what_killed_writers_leave_is_cleaned_up(opened: Opener, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    store, killed = opened(), opened()
    store.write("workers", "other", 1, version=0)
    if step != "link":
        store.write("workers", "w", 1, version=0)

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(os, step, kill)
        with pytest.raises(Killed):
            killed.write("workers", "w", 2, version=int(step != "link"))
    left = len(files(store.where, "documents"))
    assert left == 3 - (step == "link")
    version = {"rename": 1, "link": 0, "unlink": 2}[step]
    assert opened().names("workers").get("w", 0) == version
    assert store.write("workers", "w", 3, version=version)
    store._backend.sweep("workers")
    assert store.entries("workers") == {"other": Entry(1, 1), "w": Entry(3, version + 1)}
    assert len(files(store.where, "documents")) == len(files(store.where, "now")) == 2


def test_one_that_was_killed_as_it_began_a_store_is_in_nobodys_way(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*_: object) -> None:
        raise Killed

    killed = opened()
    with monkeypatch.context() as patched:
        patched.setattr(os, "link", kill)
        with pytest.raises(Killed):
            killed.write("workers", "w", 1, version=0)
    assert files(killed.where, "now", "store") != []
    assert opened().write("workers", "w", 1, version=0)
    assert opened().names("workers") == {"w": 1}


def test_sweeping_leaves_what_may_become_the_entry(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = opened(), opened()
    slow.write("workers", "w", 1, version=0)
    fast.read("workers", "w")
    before(monkeypatch, "rename", lambda: fast._backend.sweep("workers"))
    assert slow.write("workers", "w", 2, version=1)
    before(monkeypatch, "link", lambda: fast._backend.sweep("workers"))
    assert slow.write("workers", "new", 1, version=0)
    assert opened().names("workers") == {"new": 1, "w": 2}


def test_writers_sweep_at_times(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[str] = []
    monkeypatch.setattr("pytest_regional.fuzz.store.folder._SWEEP_EVERY", 3)
    monkeypatch.setattr(store._backend, "sweep", swept.append)
    for version in range(7):
        store.write("workers", "w", 1, version=version)
    assert swept.count("workers") in (2, 3)


def test_a_token_is_remembered_for_a_while(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_regional.fuzz.store.folder.REMEMBERED", 3)
    assert [store.next_number("program", str(index)) for index in range(5)] == list(range(5))
    assert [store.next_number("program", str(index)) for index in (2, 3, 4, 1)] == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("step", "code"),
    [("rename", errno.ENOSPC), ("link", errno.EDQUOT), ("listdir", errno.EACCES), ("mkdir", errno.EROFS)],
)
def test_what_the_file_system_says_is_said(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, step: str, code: int
) -> None:
    opened().write("workers", "w", 1, version=0)
    store = opened()

    def fail(path: str, *_: object) -> None:
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(StoreError, match=f"{store.where} cannot be used: {store.where}/.*: {os.strerror(code)}"):
        if step == "mkdir":
            store.write("claims", "w", 2, version=0)
        elif step == "link":
            store.write("workers", "v", 2, version=0)
        else:
            store.write("workers", "w", 2, version=1)


def test_no_space_for_a_document_leaves_none(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write("workers", "w", 1, version=0)

    def fail(self: object, descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(type(store._backend), "_let_others_read", fail)
    with pytest.raises(StoreError, match="No space left"):
        store.write("workers", "w", 2, version=1)
    monkeypatch.undo()
    assert store.write("workers", "w", 2, version=1)
    assert len(files(store.where, "documents")) == 1


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match=r"cannot be used: .*Not a directory"):
            open_store(path, secret=KEY).write("workers", "w", 1, version=0)


def test_a_folder_that_was_deleted_is_said(store: Store, url: str) -> None:
    store.write("workers", "w", 1, version=0)
    shutil.rmtree(url)
    assert store.read("workers", "w") is None
    with pytest.raises(StoreError, match="No such file or directory"):
        store.write("workers", "v", 1, version=0)
