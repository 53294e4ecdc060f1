"""Which operators stand before which, and whether anything but position keeps them there."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

import torch.fx

from pytest_regional.harness.graph_passes.ops import Occurrence
from pytest_regional.harness.graph_passes.patterns import OpPattern

Pair = tuple[Occurrence, Occurrence]


def out_of_order(patterns: Sequence[OpPattern], present: Sequence[Occurrence]) -> list[Pair]:
    """Return the pairs that stand the wrong way round; patterns that are not present are passed over."""
    position = {id(one): index for index, one in enumerate(present)}
    return [(a, b) for a, b in _wanted(patterns, present) if position[id(a)] >= position[id(b)]]


def not_pinned(patterns: Sequence[OpPattern], present: Sequence[Occurrence]) -> list[Pair]:
    """Return the pairs of which the second does not depend on the first, by data or by ``control_deps``."""
    needs = _Ancestors()
    return [(a, b) for a, b in _wanted(patterns, present) if not _depends(b, a, needs)]


def _wanted(patterns: Sequence[OpPattern], present: Sequence[Occurrence]) -> list[Pair]:
    found = [group for group in (pattern.among(present) for pattern in patterns) if group]
    return [pair for first, second in pairwise(found) for pair in product(first, second)]


def _depends(later: Occurrence, earlier: Occurrence, needs: _Ancestors) -> bool:
    """Say whether ``later`` needs ``earlier``: directly or through others, in the graph that holds both."""
    for ours, theirs in zip(later.chain, earlier.chain, strict=False):
        if ours is not theirs:
            return theirs in needs[ours]
    # One stands in the body of the other: the caller comes first.
    return len(later.chain) > len(earlier.chain)


class _Ancestors(dict[torch.fx.Node, set[torch.fx.Node]]):
    """Everything that a node needs, directly or through others; the edges of ``control_deps`` are inputs."""

    def __missing__(self, node: torch.fx.Node) -> set[torch.fx.Node]:
        found: set[torch.fx.Node] = set()
        waiting = [node]
        while waiting:
            new = [needed for needed in waiting.pop().all_input_nodes if needed not in found]
            found.update(new)
            waiting += new
        self[node] = found
        return found
