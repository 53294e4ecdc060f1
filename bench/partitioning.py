"""How long a graph takes to be cut into regions, for ``rows.partitioning``.

Chains of N ops in four alternating regions. Ours is planning and rewriting the graph; PyTorch's is the same stage of
its ``regional_inductor``. Both stop before any region is compiled.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.fx
from torch.fx.passes.regional_inductor import _create_inductor_marked_regions

from pytest_regional._torch.fx_graphs import preserve_node_meta
from pytest_regional._torch.tracing import new_fake_mode
from pytest_regional.reference.extract import extract_partitions
from pytest_regional.reference.partition import plan_partitions


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


def torch_region_count(gm: torch.fx.GraphModule) -> int:
    """Count the partitions that PyTorch's regional_inductor makes of ``gm``, which it rewrites (2.13, 2.15).

    2.11 has the same function, but no region ids.
    """
    extracted = _create_inductor_marked_regions(gm)
    extracted.graph.lint()
    return sum(node.op == "call_module" for node in extracted.graph.nodes)


def ours(gm: torch.fx.GraphModule) -> None:
    """Plan and rewrite."""
    extract_partitions(gm, plan_partitions(gm.graph))
