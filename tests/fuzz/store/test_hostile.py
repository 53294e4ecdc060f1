"""Entries that somebody else put there: skipped, said once, and in nobody's way."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_regional.fuzz.store import Entry, Store, StoreError, open_store
from tests.fuzz.store.conftest import KEY, Opener

NONCE = "0123456789abcdef"
JUNK = b"7 " + b"0" * 64 + b'\n{"format":1,"nonce":"0123456789abcdef","data":{"evil":1}}'


class Place:
    """What somebody who can write to the place, and has no secret, can do."""

    def put(self, table: str, name: str, version: int, content: bytes) -> None:
        """Put ``content`` where the newest version of an entry is looked for."""

    def damage(self, table: str, name: str) -> None:
        """Overwrite what is there."""

    def copy(self, table: str, name: str, to: str) -> None:
        """Put an entry in another one's place."""


class Folder(Place):
    def __init__(self, url: str) -> None:
        self.folder = Path(url)

    def put(self, table: str, name: str, version: int, content: bytes) -> None:
        for part in ("documents", "now", "first"):
            (self.folder / table / part).mkdir(parents=True, exist_ok=True)
        file = f"{name}.{version}.{NONCE}"
        (self.folder / table / "documents" / file).write_bytes(content)
        (self.folder / table / "now" / file).touch()
        if version == 1:
            (self.folder / table / "first" / f"{name}.0").write_bytes(content)

    def damage(self, table: str, name: str) -> None:
        for path in (self.folder / table / "documents").glob(f"{name}.*"):
            path.unlink()  # it may be linked from `first`
            path.write_bytes(b"")

    def copy(self, table: str, name: str, to: str) -> None:
        content = next((self.folder / table / "documents").glob(f"{name}.*")).read_bytes()
        version = int(content.split()[0])
        self.put(table, to, version, content)


class Redis(Place):
    def __init__(self, url: str) -> None:
        import redis

        address, _, campaign = url.partition("?campaign=")
        self.client = redis.Redis.from_url(address)
        self.prefix = f"pytest-regional:campaign:{campaign}:"

    def put(self, table: str, name: str, version: int, content: bytes) -> None:
        self.client.hset(f"{self.prefix}values:{table}", name, content)
        self.client.hset(f"{self.prefix}versions:{table}", name, str(version))

    def damage(self, table: str, name: str) -> None:
        self.client.hset(f"{self.prefix}values:{table}", name, b"")

    def copy(self, table: str, name: str, to: str) -> None:
        content = self.client.hget(f"{self.prefix}values:{table}", name)
        self.put(table, to, int(content.split()[0]), content)


@pytest.fixture
def place(url: str) -> Place:
    return Redis(url) if url.startswith("redis:") else Folder(url)


@pytest.fixture(autouse=True)
def without_persistence_told(told: list[str]) -> Callable[[], list[str]]:
    return lambda: [one for one in told if "on disk" not in one]


CONTENTS = {
    "junk": b"junk",
    "empty": b"",
    "forged": JUNK,
    "unsigned": JUNK.replace(b"0" * 64, b"unsigned"),
    "large": b"7 " + b"x" * (5 * 2**20),
    "version": JUNK.replace(b"7", b"9" * 18),
}


@pytest.mark.parametrize("kind", CONTENTS)
@pytest.mark.parametrize("version", [1, 7, 10**17])
def test_junk_in_a_free_place_is_no_entry(
    store: Store,
    opened: Opener,
    place: Place,
    without_persistence_told: Callable[[], list[str]],
    kind: str,
    version: int,
) -> None:
    store.write("findings", "other", "good", version=0)
    for name in ("a", "b"):
        place.put("findings", name, version, CONTENTS[kind])
    readers = store, opened()
    for reader in readers:
        assert reader.read("findings", "a") is None
        assert reader.entries("findings") == {"other": Entry("good", 1)}
        assert reader.names("findings") == {"other": 1}
    said = without_persistence_told()
    assert len(said) == 2  # one of each reader
    assert "is skipped: it " in said[0]
    assert "evil" not in "".join(said)
    assert readers[0].write("findings", "a", "mine", version=0)
    entry = readers[1].read("findings", "a")
    assert entry is not None
    assert entry.data == "mine"
    assert not readers[1].write("findings", "a", "other", version=0)
    assert readers[1].write("findings", "a", "next", version=entry.version)
    assert opened().entries("findings") == {"other": Entry("good", 1), "a": Entry("next", entry.version + 1)}


@pytest.mark.parametrize("version", [3, 7])
def test_junk_above_an_entry_does_not_stop_it(store: Store, opened: Opener, place: Place, version: int) -> None:
    for index in range(2):
        store.write("workers", "w", index, version=index)
    place.put("workers", "w", version, JUNK)
    reader = opened()
    for index in range(2, 9):
        assert store.write("workers", "w", index, version=index)
        assert not store.write("workers", "w", "late", version=index)
        assert reader.read("workers", "w") == store.read("workers", "w") == Entry(index, index + 1)
    assert opened().names("workers") == {"w": 9}


def test_an_entry_that_was_damaged_can_be_written_again(store: Store, opened: Opener, place: Place) -> None:
    """As by a loss of power. Its version goes on, so that who held it before is not taken for who writes it now."""
    for index in range(3):
        store.write("workers", "w", index, version=index)
    place.damage("workers", "w")
    writer, other = opened(), opened()
    assert writer.read("workers", "w") is None
    assert writer.write("workers", "w", "new", version=0)
    assert not other.write("workers", "w", "twice", version=0)
    assert not store.write("workers", "w", "late", version=3)
    assert opened().read("workers", "w") == Entry("new", 4)
    assert other.write("workers", "w", "newer", version=4)


def test_an_entry_that_was_moved_is_skipped(store: Store, opened: Opener, place: Place) -> None:
    store.write("findings", "a", "a", version=0)
    store.write("findings", "b", "b", version=0)
    place.copy("findings", "a", to="c")
    place.copy("findings", "a", to="b")
    assert "c" not in opened().entries("findings")
    b = opened().read("findings", "b")
    assert b is None or b == Entry("b", 1)


@pytest.mark.parametrize(("secret", "other"), [(KEY, b"another"), (KEY, b""), (b"", KEY)])
def test_another_secret_is_said_at_once(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, secret: bytes, other: bytes
) -> None:
    monkeypatch.setenv("PYTEST_REGIONAL_CAMPAIGN_UNAUTHENTICATED", "allow")
    early = opened(other)
    assert opened(secret).write("findings", "a", 1, version=0)
    with pytest.raises(StoreError, match=r"begun with another secret, or without one. Set PYTEST_REGIONAL_CAMPAIGN_S"):
        opened(other)
    with pytest.raises(StoreError, match="begun with another secret"):
        early.write("findings", "b", 1, version=0)
    assert opened(secret).names("findings") == {"a": 1}


class TestFolder:
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return str(tmp_path / "campaign")

    @pytest.mark.parametrize("part", ["now", "documents", "first"])
    def test_files_of_other_kinds_are_in_nobodys_way(
        self, store: Store, opened: Opener, url: str, part: str, tmp_path: Path
    ) -> None:
        store.write("findings", "a", 1, version=0)
        folder = Path(url, "findings", part)
        (folder / "README").write_text("hello")
        (folder / "\x1b[31m\udcff.1.x").touch()
        os.mkfifo(folder / f"b.0{'.' + NONCE if part != 'first' else ''}")
        slot = "b.0" if part == "first" else f"c.1.{NONCE}"
        (folder / slot).unlink(missing_ok=True)
        (folder / slot).symlink_to(tmp_path)
        (folder / f"d.2.{NONCE}").symlink_to("/dev/zero")
        for name in "bcd":
            assert opened().read("findings", name) is None
            assert store.write("findings", name, name, version=0)
        assert opened().names("findings") == dict.fromkeys("abcd", 1)
        store._backend.sweep("findings")
        assert (folder / "README").exists()

    def test_slots_that_are_all_junk_are_said(self, store: Store, url: str) -> None:
        store.write("findings", "a", 1, version=0)
        for slot in range(64):
            Path(url, "findings", "first", f"b.{slot}").touch()
        with pytest.raises(StoreError, match=r"b.0 and 63 others like it are no entries of this store. Delete them"):
            store.write("findings", "b", 1, version=0)

    def test_an_entry_without_its_file_is_waited_for_once(
        self, store: Store, opened: Opener, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.write("findings", "a", 1, version=0)
        store.write("findings", "b", 1, version=0)
        next(Path(url, "findings", "now").glob("a.*")).unlink()
        reader, listings, original = opened(), [], os.listdir
        monkeypatch.setattr(os, "listdir", lambda path: listings.append(path) or original(path))
        assert reader.entries("findings") == {"b": Entry(1, 1)}
        listings.clear()
        assert reader.entries("findings") == {"b": Entry(1, 1)}
        assert len(listings) < 5

    def test_a_document_that_may_not_be_read_is_skipped(
        self, store: Store, opened: Opener, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.write("findings", "a", 1, version=0)
        Folder(url).put("findings", "a", 5, JUNK)
        original = os.open

        def refuse(path: Path, *arguments: int, **options: int) -> int:
            if str(path).endswith(f"documents/a.5.{NONCE}"):
                raise PermissionError(13, "Permission denied", str(path))
            return original(path, *arguments, **options)

        monkeypatch.setattr(os, "open", refuse)
        assert opened().read("findings", "a") == Entry(1, 1)


class TestRedis:
    @pytest.fixture
    def url(self, redis_port: int) -> str:
        return f"redis://127.0.0.1:{redis_port}/0?campaign=hostile-{os.urandom(8).hex()}"

    def test_versions_that_lie_change_nothing(self, store: Store, opened: Opener, url: str) -> None:
        for index in range(2):
            store.write("workers", "w", index, version=index)
        place = Redis(url)
        place.client.hset(
            f"{place.prefix}versions:workers", mapping={"w": "99", "no such": "1", "x": "-1", b"\xff": "1"}
        )
        reader = opened()
        assert reader.names("workers") == {"w": 2}
        assert reader.entries("workers") == {"w": Entry(1, 2)}
        assert reader.entries("workers", {"w": 2}) == {}
        assert store.write("workers", "w", 2, version=2)
        assert reader.names("workers") == {"w": 3}

    def test_a_value_of_another_type_is_said(self, store: Store, url: str) -> None:
        place = Redis(url)
        place.client.set(f"{place.prefix}versions:findings", "text")
        with pytest.raises(StoreError, match=r"cannot be used: .*WRONGTYPE"):
            store.entries("findings")

    def test_a_table_without_end_is_said(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pytest_regional.fuzz.store.server.MOST_ENTRIES", 1)
        store.write("findings", "a", 1, version=0)
        store.write("findings", "b", 1, version=0)
        with pytest.raises(StoreError, match="the table has more than 1 entries"):
            store.entries("findings")

    def test_campaigns_on_one_server_are_apart(self, store: Store, url: str) -> None:
        store.write("findings", "a", 1, version=0)
        other = open_store(url + "x", secret=KEY, tell=lambda _: None)
        assert other.entries("findings") == {}
        assert other.write("findings", "a", 2, version=0)
        mine, theirs = Redis(url), Redis(url + "x")
        theirs.put("findings", "a", 1, mine.client.hget(f"{mine.prefix}values:findings", "a"))
        assert other.read("findings", "a") is None
        other.close()
