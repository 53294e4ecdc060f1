"""Several processes at one entry: no write is lost, none counts twice."""

from __future__ import annotations

import time
from itertools import chain

from pytest_regional.fuzz.store import Entry, Store
from tests.fuzz.store.conftest import Opener
from tests.fuzz.store.processes import printed, running

COUNT = """
won = 0
while won < int(sys.argv[2]):
    entry = store.read("totals", "count")
    data, version = (entry.data, entry.version) if entry else (0, 0)
    won += store.write("totals", "count", data + 1, version=version)
"""

CREATE = """
import random
for i in random.sample(range(int(sys.argv[2])), int(sys.argv[2])):
    if store.write("claims", f"claim{i}", 1, version=0):
        print(i)
"""

NUMBER = """
for i in range(int(sys.argv[2])):
    token = f"{time.monotonic_ns()}"
    number = store.next_number("program", token)
    assert store.next_number("program", token) == number
    print(number)
"""

READ = """
seen, versions = 0, {}
deadline = time.monotonic() + 30
while seen < int(sys.argv[2]) and time.monotonic() < deadline:
    entry = store.read("totals", "count")
    assert entry and entry.data == entry.version >= seen, (entry, seen)
    seen = entry.version
    found = store.entries("totals")
    assert found["count"].version >= seen, (found, seen)
"""

#: Writes of each process.
EACH = 150


def test_no_increment_is_lost(url: str, opened: Opener, store: Store) -> None:
    with running(url, [COUNT] * 4, str(EACH)) as started:
        assert [printed(process) for process in started] == [[]] * 4
    assert store.read("totals", "count") == Entry(4 * EACH, 4 * EACH)


def test_an_entry_is_never_missed_nor_older_while_others_write(url: str, store: Store) -> None:
    store.write("totals", "count", 1, version=0)
    for name in range(30):
        store.write("totals", f"other{name}", 1, version=0)
    with running(url, [COUNT, COUNT, READ], str(2 * EACH)) as started:
        assert [printed(process) for process in started] == [[]] * 3


def test_each_entry_is_created_once(url: str, store: Store) -> None:
    with running(url, [CREATE] * 4, str(EACH)) as started:
        created = [printed(process) for process in started]
    assert sorted(map(int, chain(*created))) == list(range(EACH))
    assert sum(map(bool, created)) > 1  # they did run at once
    assert len(store.entries("claims")) == EACH


def test_each_number_is_given_once(url: str) -> None:
    with running(url, [NUMBER] * 4, "50") as started:
        numbers = [list(map(int, printed(process))) for process in started]
    assert sorted(chain(*numbers)) == list(range(200))
    assert all(those == sorted(those) for those in numbers)


def test_killed_writers_leave_whole_entries(url: str, opened: Opener, store: Store) -> None:
    reader = opened()
    for _ in range(8):
        with running(url, [COUNT] * 2, "1000000"):
            before = reader.read("totals", "count") or Entry(0, 0)
            time.sleep(0.05)
        entry = opened().read("totals", "count")
        assert entry is not None
        assert entry.data == entry.version > before.version
        assert reader.read("totals", "count") == entry
    assert store.write("totals", "count", "still", version=entry.version)
