"""Kill, change, cut and crowd the local store many times, and print the counts.

``python -m bench.faults [KILLS] [ROUNDS]``.
"""

from __future__ import annotations

import collections
import sys
import tempfile
import time
from pathlib import Path

from pytest_regional.reference.caching import container
from tests.faults.caching import trials, writer


def main(kills: int = 500, rounds: int = 1000) -> None:
    """Run every trial in a folder of its own."""
    container.this_machine = lambda: writer.MACHINE  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        _timed("kills while saving", lambda: trials.kill_while_saving(Path(folder) / "kills", kills))
        for way in ("save_and_load", "save_and_load_file"):
            _timed(
                f"two processes, {way}, {rounds} rounds each", lambda way=way: _crowd(way, Path(folder) / way, rounds)
            )
    sealed = container.seal(bytes(range(256)) * 16, kind="trial")
    _timed("one bit flipped", lambda: _refusals(data for _, data in trials.flipped(sealed, range(len(sealed)))))
    _timed("cut short", lambda: _refusals(sealed[:length] for length in range(len(sealed))))


def _crowd(way: str, folder: Path, rounds: int) -> list[str]:
    return trials.finish(*[trials.start(way, folder, first, rounds) for first in (0, 100_000)])


def _refusals(artifacts: object) -> dict[str, int]:
    found = collections.Counter(trials.refusal(container.unseal, data, kind="trial") for data in artifacts)  # type: ignore[attr-defined]
    return {kind.__name__ if kind else "accepted": count for kind, count in found.items()}


def _timed(what: str, trial: object) -> None:
    started = time.perf_counter()
    result = trial()  # type: ignore[operator]
    print(f"{what}: {result} in {time.perf_counter() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
