"""Cutting a graph into regions, beside PyTorch's partitioner, and how the time grows with the graph."""

from __future__ import annotations

from .row import Claim, Row, Target
from .turns import in_turns

#: Ops, the target, and how many of PyTorch's runs fit into minutes: at 10,000 ops it takes three.
SIZES = (
    (1_000, None, 5),
    (3_000, None, 2),
    (10_000, Target("at most 1/100", most=1 / 100), 1),
)
#: Ops in a row that are of one region.
RUN = 25
GROWTH = Claim(
    "partitioning: growth",
    "10,000 ops, backend `regional`",
    "1,000 ops, the same",
    "s",
    figure="ours / theirs",
    style="{:.1f} x",
)
CLAIMS = (
    *(
        Claim(
            f"partitioning: {size:,} ops",
            "backend `regional`",
            "PyTorch's regional backend",
            "s",
            target,
            style="{:.4f}",
        )
        for size, target, _ in SIZES
    ),
    GROWTH,
)


def measure(rounds: int) -> list[Row]:
    """Take turns, as long as PyTorch has runs left."""
    from bench.partitioning import ours, seconds, torch_region_count

    seconds(ours, 100, RUN, 1)
    seconds(torch_region_count, 100, RUN, 1)
    rows, mine = [], {}
    for claim, (size, _, most) in zip(CLAIMS, SIZES, strict=False):
        mine[size], theirs = [], []
        for turn in range(rounds):
            mine[size] += seconds(ours, size, RUN, 1)
            if turn < most:
                theirs += seconds(torch_region_count, size, RUN, 1)
        note = f"PyTorch's run {len(theirs)} {'time' if len(theirs) == 1 else 'times'}" if len(theirs) < rounds else ""
        rows.append(claim.row(mine[size], theirs, note))
    ways = {"ours": lambda: seconds(ours, 10_000, RUN, 1)[0], "theirs": lambda: seconds(ours, 1_000, RUN, 1)[0]}
    return [*rows, GROWTH.row(**in_turns(rounds, ways))]
