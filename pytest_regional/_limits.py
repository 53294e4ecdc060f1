"""Limits of time as people give them: what no clock can count to, or no test can keep, is refused with the range."""

from __future__ import annotations

#: Seconds. Timers count no shorter ones reliably, and a run of a year has no limit.
LEAST_SECONDS, MOST_SECONDS = 0.1, 365 * 24 * 3600
SECONDS = f"a number of seconds from {LEAST_SECONDS:g} to {MOST_SECONDS} (a year), such as 120 or 2.5"


def seconds_of(value: object) -> float:
    """Return the seconds that ``value``, a number or its text, stands for.

    Raises:
        ValueError: it is no number, or none from :data:`LEAST_SECONDS` to :data:`MOST_SECONDS`; says what was expected.
    """
    try:
        seconds = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else 0.0
    except (ValueError, OverflowError):
        seconds = 0.0
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise ValueError(f"expected {SECONDS}")
    return seconds


__all__ = ["LEAST_SECONDS", "MOST_SECONDS", "SECONDS", "seconds_of"]
