"""A process that saves and loads, to be killed or starved; without torch, so that a hundred can start in seconds.

Usage: writer.py WAY MANNER FOLDER ...; see ``WAYS``. Says ``ready``, begins when it is sent a line, and says
``done COUNT`` when it ends. Every warning is an error: a broken entry that is only skipped would be one.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import resource
import sys
import time
import types
import warnings
from pathlib import Path

# The package above imports torch; a stand-in with its path does not.
_package = types.ModuleType("pytest_regional.reference")
_package.__path__ = [str(Path(__file__).parents[3] / "pytest_regional" / "reference")]
sys.modules.setdefault("pytest_regional.reference", _package)

from pytest_regional.reference.caching import container  # noqa: E402
from pytest_regional.reference.caching import store as stores  # noqa: E402
from pytest_regional.reference.caching.container import (  # noqa: E402
    TargetFingerprint,
    read_artifact,
    write_artifact,
)

MACHINE = TargetFingerprint("python", "torch", "triton", "compiler", "cpu", "")
KEYS = ("a0", "b1", "c2")
KIND = "trial"


def payload(number: int, size: int) -> bytes:
    """Return ``size`` bytes that say themselves whether they are whole."""
    body = number.to_bytes(8, "big") * (size // 8)
    return hashlib.sha256(body).digest() + body


def is_whole(data: bytes) -> bool:
    return hashlib.sha256(data[32:]).digest() == data[:32]


def write_in_place(path: Path, data: bytes, **options: object) -> None:
    """Write as one should not: the trials must notice."""
    with path.open("wb") as file:
        for start in range(0, len(data), 100_000):
            file.write(data[start : start + 100_000])
            file.flush()
            time.sleep(0.0005)


def save_for_ever(folder: Path, size: str) -> int:
    store = stores.LocalStore(folder)
    for number in itertools.count():
        assert store.save(KEYS[number % len(KEYS)], payload(number % 12, int(size)))
    raise AssertionError


def save_in_forks(folder: Path, size: str) -> int:
    """Fork a process that says its number and saves for ever; once it is dead and a line comes, fork the next."""
    for count in itertools.count(1):
        child = os.fork()
        if child == 0:
            print(os.getpid(), flush=True)
            save_for_ever(folder, size)
        os.waitpid(child, 0)
        print("dead", flush=True)
        if not sys.stdin.readline():
            return count
    raise AssertionError


def save_and_load(folder: Path, first: str, count: str) -> int:
    """Save entries of its own next to somebody else's; each must be there from then on, and all must be whole."""
    store, saved = stores.LocalStore(folder), set()
    for number in range(int(first), int(first) + int(count)):
        mine = payload(number % 5 + int(first), 200_000)
        assert store.save(KEYS[0], mine)
        saved.add(mine)
        found = set(store.candidates(KEYS[0]))
        assert all(map(is_whole, found)), "a broken entry was read"
        assert saved <= found, "an entry was lost"
    return int(count)


def save_and_load_file(folder: Path, first: str, count: str) -> int:
    """Replace one file again and again, and read it while somebody else replaces it."""
    for number in range(int(first), int(first) + int(count)):
        write_artifact(folder / "artifact", payload(number, 400_000), KIND)
        assert is_whole(read_artifact(folder / "artifact", KIND)), "a broken file was read"
    return int(count)


def save_limited(folder: Path, limit: str) -> int:
    """Save under a limit for the size of files: as if the disk were full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    warnings.simplefilter("ignore")
    store = stores.LocalStore(folder)
    kept = [store.save(KEYS[0], payload(0, size)) for size in (int(limit) * 4, 64)]
    assert kept == [False, True], kept
    return len(kept)


WAYS = {way.__name__: way for way in (save_for_ever, save_in_forks, save_and_load, save_and_load_file, save_limited)}


def main(way: str, manner: str, folder: str, *arguments: str) -> None:
    warnings.simplefilter("error")
    container.this_machine = lambda: MACHINE  # type: ignore[assignment]
    if manner == "in-place":
        stores.write_whole = container.files.write_whole = write_in_place  # type: ignore[assignment]
    print("ready", flush=True)
    sys.stdin.readline()
    print("done", WAYS[way](Path(folder), *arguments), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
