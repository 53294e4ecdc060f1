"""Print what calling a compiled region costs beside PyTorch's backend: ``python tests/benchmarks/region_calls.py``.

The region is one tiny matrix product, so that what remains is the call. The cost per region is the slope between a
program with 1 and one with 32 regions, less what the same products cost between them when eager.
"""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

from pytest_regional._torch.backends import regional_inductor_backend
from pytest_regional.annotation import region
from pytest_regional.reference import regional

ROUNDS = 15
CALLS = 1_000


def program(count: int, *, annotated: bool) -> Callable[..., torch.Tensor]:
    """Return ``count`` products with an eager op after each."""

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(count):
            if annotated:
                with region("r"):
                    x = x @ w
            else:
                x = x @ w
            x = x.relu()
        return x

    return run


def microseconds(fn: Callable[..., Any], *inputs: torch.Tensor) -> float:
    """Time one call, without gradients."""
    with torch.no_grad():
        begin = time.perf_counter()
        for _ in range(CALLS):
            fn(*inputs)
        return (time.perf_counter() - begin) / CALLS * 1e6


def main() -> None:
    """Print cost per region call, and the ratio."""
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, median of {ROUNDS}")
    backends = {"ours": regional, "PyTorch": regional_inductor_backend(), "no region": regional}
    inputs = torch.randn(4, 4), torch.randn(4, 4)
    compiled = {}
    for who, backend in backends.items():
        for count in (1, 32):
            fn = program(count, annotated=who != "no region")
            compiled[who, count] = torch.compile(fn, backend=backend, fullgraph=True)
            microseconds(compiled[who, count], *inputs)
    times: dict[tuple[str, int], list[float]] = {key: [] for key in compiled}
    for _ in range(ROUNDS):
        for key, fn in compiled.items():
            times[key].append(microseconds(fn, *inputs))
    slope = {
        who: [(large - small) / 31 for small, large in zip(times[who, 1], times[who, 32], strict=True)]
        for who in backends
    }
    cost = {who: [a - b for a, b in zip(slope[who], slope["no region"], strict=True)] for who in ("ours", "PyTorch")}
    for who, values in cost.items():
        print(f"{who:8} {statistics.median(values):6.2f} us a call (from {min(values):.2f} to {max(values):.2f})")
    ratio = statistics.median(cost["ours"]) / statistics.median(cost["PyTorch"])
    print(f"ratio {ratio:.2f}; with 1 region {_whole(times, 1)}, with 32 {_whole(times, 32)} of PyTorch's time")


def _whole(times: dict[tuple[str, int], list[float]], count: int) -> str:
    return f"{statistics.median(times['ours', count]) / statistics.median(times['PyTorch', count]):.2f}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        main()
