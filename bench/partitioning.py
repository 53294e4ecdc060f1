"""Print how long a graph takes to be cut into regions, beside PyTorch: ``python -m bench.partitioning``.

Chains of N ops in four alternating regions, that change with each op or with every 25th. Ours is planning and
rewriting the graph; PyTorch's is the same stage of its ``regional_inductor``. Both stop before any region is compiled.
PyTorch's time grows with the square and worse, so its largest run needs ``--full`` (minutes).
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.fx

from pytest_regional._torch.fx_graphs import preserve_node_meta
from pytest_regional._torch.inductor import torch_region_count
from pytest_regional._torch.tracing import new_fake_mode
from pytest_regional.reference.extract import extract_partitions
from pytest_regional.reference.partition import plan_partitions

SIZES = (1_000, 3_000, 10_000)
RUNS = 5


def chain(size: int, run: int) -> torch.fx.GraphModule:
    """Build a chain of ``size`` ops in four regions that take turns every ``run`` ops."""
    value = new_fake_mode().from_tensor(torch.empty(4))
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    node.meta["val"] = value
    for number in range(size):
        node = graph.call_function(torch.ops.aten.sin.default, (node,))
        node.meta = {"val": value, "custom": {"compile_with_inductor": {"inductor_region": f"r{number // run % 4}"}}}
    graph.output((node,))
    return torch.fx.GraphModule({}, graph)


def seconds(cut: Callable[[torch.fx.GraphModule], object], size: int, run: int, repeats: int) -> list[float]:
    """Time ``cut`` on fresh graphs."""
    times = []
    for _ in range(repeats):
        gm = chain(size, run)
        begin = time.perf_counter()
        with preserve_node_meta(enable=False):
            cut(gm)
        times.append(time.perf_counter() - begin)
    return times


def ours(gm: torch.fx.GraphModule) -> None:
    """Plan and rewrite."""
    extract_partitions(gm, plan_partitions(gm.graph))


def main() -> None:
    """Print a line for each size and pattern."""
    full = "--full" in sys.argv
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, median of {RUNS}")
    for run in (25, 1):
        for size in SIZES:
            mine = seconds(ours, size, run, RUNS)
            line = f"{size:6} ops, {size // run:6} partitions: ours {statistics.median(mine):6.3f} s"
            line += f" (from {min(mine):.3f} to {max(mine):.3f})"
            if size == SIZES[0] or (run > 1 and (full or size < SIZES[-1])):
                (theirs,) = seconds(torch_region_count, size, run, 1)
                line += f", PyTorch {theirs:7.2f} s, ratio 1/{theirs / statistics.median(mine):.0f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
