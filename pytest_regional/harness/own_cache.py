"""Lookups of a cache that a backend has of its own.

PyTorch's seams do not see them. Backends tell of them where PyTorch counts its own: in ``torch._dynamo.utils.counters``
under ``aot_autograd``, as ``autograd_cache_hit``, ``_miss``, ``_bypass`` and ``_saved``, with the reasons of bypasses
under ``regional_cache_bypass``. What those counters moved beyond what the seams saw is the backend's own.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping

from pytest_regional._torch import seams

#: Our counter for each of PyTorch's.
OUTCOMES = {
    "hit": "cache_hits",
    "miss": "cache_misses",
    "bypass": "cache_bypasses",
    "saved": "cache_saves",
}


def moved(before: Mapping[str, int]) -> Counter[str]:
    """Return by how much PyTorch's counters of outcomes moved since ``before``, a copy of ``seams.aot_counters()``."""
    now = seams.aot_counters()
    names = {outcome: f"autograd_cache_{outcome}" for outcome in OUTCOMES}
    return Counter({outcome: now.get(name, 0) - before.get(name, 0) for outcome, name in names.items()})


class OwnCache:
    """Tells apart what the seams saw and what only the counters say."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.look_away()

    def saw(self, outcomes: Counter[str]) -> None:
        """Note outcomes that a seam told of."""
        with self._lock:
            self._seen.update(outcomes)

    def mark(self) -> tuple[dict[str, int], Counter[str], Counter[str]]:
        """Return a position to pass to :meth:`since`."""
        with self._lock:
            return dict(seams.aot_counters()), self._seen.copy(), Counter(seams.cache_bypass_reasons())

    def since(self, mark: tuple[dict[str, int], Counter[str], Counter[str]]) -> Iterator[tuple[str, str]]:
        """Yield outcome and cause of what no seam saw, and nobody was told of, since ``mark``."""
        counters, seen, reasons = mark
        with self._lock:
            own = moved(counters) - (self._seen - seen)
            self._seen.update(own)
        told = iter((Counter(seams.cache_bypass_reasons()) - reasons).elements())
        for outcome in OUTCOMES:
            for _ in range(own[outcome]):
                reason = next(told, "no reason given") if outcome == "bypass" else "the whole graph"
                yield outcome, f"cache of the backend: {reason}"

    def look_away(self) -> None:
        """Forget what was told up to now: :meth:`untold` begins here."""
        self._looked = self.mark()

    def untold(self) -> Iterator[tuple[str, str]]:
        """Yield what nobody was told of since the last look; to be asked around whatever clears PyTorch's counters."""
        yield from self.since(self._looked)
        self.look_away()
