"""Faults, many times over, with counts."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_regional.reference import ArtifactError, CacheWarning
from pytest_regional.reference.caching.store import LocalStore
from tests.faults.caching import writer

ROOT = Path(__file__).parents[3]
ENTRY_BYTES = 1_000_000


@dataclass
class Kills:
    """What was found after processes were killed while they saved."""

    trials: int = 0
    whole: int = 0
    broken: int = 0
    in_the_middle: int = 0
    next_save_failed: int = 0


def start(way: str, folder: Path, *arguments: object, manner: str = "atomic") -> subprocess.Popen[str]:
    """Start a writer, which waits for :func:`begin`."""
    command = [sys.executable, str(Path(writer.__file__)), way, manner, str(folder), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    return process


def begin(*processes: subprocess.Popen[str]) -> None:
    """Have writers begin, at the same time."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def finish(*processes: subprocess.Popen[str]) -> list[str]:
    """Return what the writers said at their end; what went wrong in one is an ``AssertionError`` here."""
    said = [process.communicate(timeout=300) for process in processes]
    for process, (_, complaint) in zip(processes, said, strict=True):
        assert process.returncode == 0, complaint
    return [answer.strip() for answer, _ in said]


def kill_while_saving(folder: Path, trials: int, *, hits: int, seed: int = 0, manner: str = "atomic") -> Kills:
    """Kill a saving process at a random moment, ``trials`` times in one folder.

    On a busy machine most processes die before they save: trials go on until ``hits`` were in the middle of a save, or
    broke an entry, but for fifty times as many at most.
    """
    moments = random.Random(seed)
    kills = Kills()
    for number, key in enumerate(writer.KEYS):  # what the first saves replace
        assert LocalStore(folder).save(key, writer.payload(number, ENTRY_BYTES))
    writers = start("save_in_forks", folder, ENTRY_BYTES, manner=manner)
    assert writers.stdout is not None
    while kills.trials < trials or (kills.in_the_middle + kills.broken < hits and kills.trials < 50 * trials):
        begin(writers)
        child = int(writers.stdout.readline())
        time.sleep(moments.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        assert writers.stdout.readline() == "dead\n"
        kills.trials += 1
        kills.in_the_middle += bool(list(folder.glob("tmp/*")))
        _inspect(folder, kills)
    assert finish(writers) == [f"done {kills.trials}"]
    return kills


def _inspect(folder: Path, kills: Kills) -> None:
    store = LocalStore(folder)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for key in writer.KEYS:
            kills.whole += sum(map(writer.is_whole, store.candidates(key)))
        kills.broken += sum(issubclass(warning.category, CacheWarning) for warning in said)
        wanted = writer.payload(99, ENTRY_BYTES)
        kept = store.save(writer.KEYS[0], wanted) and wanted in set(store.candidates(writer.KEYS[0]))
    kills.next_save_failed += not kept or any(folder.glob("tmp/*"))


def flipped(data: bytes, positions: range) -> Iterator[tuple[int, bytes]]:
    """Yield ``data`` with one bit flipped at each of ``positions``, which go round the eight bits."""
    for position in positions:
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        yield position, bytes(changed)


def refusal(use: object, *arguments: object, **options: object) -> type[ArtifactError] | None:
    """Return the error with which ``use`` refuses, ``None`` if it does not."""
    try:
        use(*arguments, **options)  # type: ignore[operator]
    except ArtifactError as error:
        return type(error)
    return None
