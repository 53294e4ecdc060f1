"""Amounts over positions of a program: raise a range, find where a threshold is passed.

A segment tree with additions that stay at the node they cover (J. L. Bentley, "Solutions to Klee's rectangle
problems", 1977): both operations take O(log n).
"""

from __future__ import annotations

from collections.abc import Sequence


class Levels:
    """One amount for each position; positions are half-open ranges everywhere."""

    def __init__(self, amounts: Sequence[int]) -> None:
        self._size = 1
        while self._size < len(amounts):
            self._size *= 2
        self._added = [0] * (2 * self._size)
        self._highest = [0] * self._size + list(amounts) + [0] * (self._size - len(amounts))
        for node in range(self._size - 1, 0, -1):
            self._highest[node] = max(self._highest[2 * node], self._highest[2 * node + 1])

    def add(self, begin: int, end: int, amount: int) -> None:
        """Raise all positions in ``[begin, end)`` by ``amount``."""
        if begin < end:
            self._add(begin, end, amount, 1, 0, self._size)

    def _add(self, begin: int, end: int, amount: int, node: int, left: int, right: int) -> None:
        if end <= left or right <= begin:
            return
        if begin <= left and right <= end:
            self._added[node] += amount
            self._highest[node] += amount
            return
        middle = (left + right) // 2
        self._add(begin, end, amount, 2 * node, left, middle)
        self._add(begin, end, amount, 2 * node + 1, middle, right)
        self._highest[node] = max(self._highest[2 * node], self._highest[2 * node + 1]) + self._added[node]

    def first_above(self, begin: int, end: int, threshold: int) -> int | None:
        """Return the first position in ``[begin, end)`` whose amount is more than ``threshold``."""
        return self._find(begin, end, threshold, False, 1, 0, self._size)

    def last_above(self, begin: int, end: int, threshold: int) -> int | None:
        """Return the last position in ``[begin, end)`` whose amount is more than ``threshold``."""
        return self._find(begin, end, threshold, True, 1, 0, self._size)

    def _find(self, begin: int, end: int, threshold: int, last: bool, node: int, left: int, right: int) -> int | None:
        if end <= left or right <= begin or self._highest[node] <= threshold:
            return None
        if right - left == 1:
            return left
        middle, rest = (left + right) // 2, threshold - self._added[node]
        halves = ((2 * node, left, middle), (2 * node + 1, middle, right))
        for half in reversed(halves) if last else halves:
            found = self._find(begin, end, rest, last, *half)
            if found is not None:
                return found
        return None
