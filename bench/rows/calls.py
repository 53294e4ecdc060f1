"""What calling a compiled region costs beside PyTorch's backend.

The region is one tiny matrix product, so that what remains is the call. What it costs is what the program takes with
it, less what the same program takes without regions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .row import Claim, Row, Target
from .turns import in_turns

COUNTS = (1, 32)
CLAIMS = tuple(
    Claim(
        f"calls: each region, {count} in the program",
        "backend `regional`, less a program without regions",
        "PyTorch's regional backend, less the same",
        "µs",
        Target("at most 1/3", most=1 / 3),
    )
    for count in COUNTS
)
#: A slice of a turn is some milliseconds, so that few are disturbed; the fastest of its slices is a turn's time.
SLICES, CALLS = 20, {1: 200, 32: 20}
TURNS_A_ROUND = 3


def program(count: int, *, annotated: bool) -> Callable[..., Any]:
    """Return ``count`` products with an eager op after each."""
    from pytest_regional._base.region import region

    def run(x: Any, w: Any) -> Any:
        for _ in range(count):
            if annotated:
                with region("r"):
                    x = x @ w
            else:
                x = x @ w
            x = x.relu()
        return x

    return run


def microseconds(fn: Callable[..., Any], calls: int, *inputs: Any) -> float:
    """Time one call, without gradients."""
    import torch

    with torch.no_grad():
        begin = time.perf_counter()
        for _ in range(calls):
            fn(*inputs)
        return (time.perf_counter() - begin) / calls * 1e6


def measure(rounds: int) -> list[Row]:
    """Take turns of all programs, slice by slice."""
    import torch

    from pytest_regional._torch.dynamo import regional_inductor_backend
    from pytest_regional.reference import regional

    backends = {"ours": regional, "PyTorch": regional_inductor_backend(), "no region": regional}
    inputs = torch.randn(4, 4), torch.randn(4, 4)

    def way(who: str, count: int) -> Callable[[], float]:
        fn = program(count, annotated=who != "no region")
        compiled = torch.compile(fn, backend=backends[who], fullgraph=True)
        return lambda: microseconds(compiled, CALLS[count], *inputs)

    ways = {f"{who} {count}": way(who, count) for who in backends for count in COUNTS}
    in_turns(1, ways)  # compiles
    turns = [
        {name: min(slices) for name, slices in in_turns(SLICES, ways).items()} for _ in range(rounds * TURNS_A_ROUND)
    ]

    def cost(who: str, count: int) -> list[float]:
        return [(turn[f"{who} {count}"] - turn[f"no region {count}"]) / count for turn in turns]

    return [claim.row(cost("ours", count), cost("PyTorch", count)) for claim, count in zip(CLAIMS, COUNTS, strict=True)]
