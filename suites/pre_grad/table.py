"""The table of timings: how often a pass runs on a miss, and on the hit after it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the table; ``late`` without a uuid is an error and stands in ``test_errors``."""

    timing: str | None
    uuid: str | None
    on_miss: int
    on_hit: int
    passes: bool = True

    @property
    def name(self):
        has = "no pass" if not self.passes else "no uuid" if self.uuid is None else "uuid"
        return f"{self.timing or 'not said'}, {has}"


TABLE = (
    Row("late", "v1", 1, 0),
    Row("late", None, 0, 0, passes=False),
    Row("early", "v1", 1, 1),
    Row("early", None, 1, 1),
    Row("default", "v1", 1, 0),
    Row("default", None, 1, 1),
    Row("default", None, 0, 0, passes=False),
    Row(None, "v1", 1, 0),
    Row(None, None, 1, 1),
)
NEEDS = ("pre_grad_passes", "outer_cache", "pre_grad_timing")
