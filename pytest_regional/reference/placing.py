"""Where a node goes that several runs of its region could take: where the program has it.

The schedule takes a node as early as it can, so the first partition of a region would swallow what stands in front of
each later block (a transposed weight, say) and only the second block would look like the third. Here such a node moves
on to the first run whose other members it does not stand behind, if its users are all of its region. That keeps the
number of partitions, and blocks that are written alike come out alike. Linear, but for a binary search a node.

Why no edge ``a -> b`` runs backwards afterwards. Number the runs in execution order; before, every edge kept it.

- ``a`` and ``b`` have different keys, or one has none: then ``a`` does not move, and ``b`` moves later if at all.
- They have one key: ``b`` goes to no run before ``a``'s, because the runs of *all* its operands of the key bound it
  from before, also of those that were in earlier runs and moved. The bound can be met: ``latest[a] <= latest[b]`` for
  each such ``a``, which went no further than ``latest[a]``.

So the runs, with the other nodes between them as they were, are an execution order still, and there is no cycle.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate

Numbers = Sequence[Sequence[int]]


def place_in_program_order(
    keys: Sequence[int | None], before: Numbers, after: Numbers, runs: list[list[int]]
) -> list[list[int]]:
    """Return ``runs``, which are in execution order, with some nodes moved to later runs of their key.

    Args:
        keys: Key of each node; nodes are numbered in program order.
        before: What each node waits for.
        after: What waits for each node.
        runs: The nodes of each run; a run that loses all of them vanishes.
    """
    run_of = {i: number for number, run in enumerate(runs) for i in run}
    latest = _latest_runs(keys, after, run_of)
    ends = _Ends(keys, runs, [i for i in run_of if latest[i] == run_of[i]], run_of)
    moved: dict[int, int] = {}
    for i in sorted(run_of):
        if latest[i] == run_of[i]:
            moved[i] = run_of[i]
            continue
        operands = [j for j in before[i] if keys[j] == keys[i]]
        earliest = max([run_of[i], *(moved[j] for j in operands)])
        joins = any(run_of[j] == run_of[i] for j in operands)
        moved[i] = earliest if joins else ends.first_beyond(i, earliest, latest[i])
    placed: list[list[int]] = [[] for _ in runs]
    for i in sorted(moved):
        placed[moved[i]].append(i)
    return [run for run in placed if run]


def _latest_runs(keys: Sequence[int | None], after: Numbers, run_of: dict[int, int]) -> dict[int, int]:
    """Return the last run that each node can be in; what others than its own region use stays where it is."""
    latest: dict[int, int] = {}
    for i in sorted(run_of, reverse=True):
        users = (latest[j] if keys[j] == keys[i] else run_of[i] for j in after[i])
        latest[i] = min(users, default=run_of[i])
    return latest


class _Ends:
    """Where the runs of each key end in the program, counting only members that cannot move."""

    def __init__(
        self, keys: Sequence[int | None], runs: list[list[int]], fixed: Sequence[int], run_of: dict[int, int]
    ) -> None:
        last = [-1] * len(runs)
        for i in fixed:
            last[run_of[i]] = max(last[run_of[i]], i)
        self._numbers: dict[int | None, list[int]] = defaultdict(list)
        for number, run in enumerate(runs):
            self._numbers[keys[run[0]]].append(number)
        self._ends = {
            key: list(accumulate((last[number] for number in numbers), max)) for key, numbers in self._numbers.items()
        }
        self._key_of_run = [keys[run[0]] for run in runs]

    def first_beyond(self, i: int, earliest: int, latest: int) -> int:
        """Return the first run from ``earliest`` to ``latest`` that ends behind node ``i``."""
        key = self._key_of_run[earliest]
        numbers = self._numbers[key]
        position = bisect_right(self._ends[key], i)
        return min(max(numbers[position], earliest), latest) if position < len(numbers) else latest
