"""Print how often PyTorch needs fewer partitions than we do: ``python -m bench.partition_counts [GRAPHS]``.

Random graphs of 5 to 60 ops in up to four regions. Where PyTorch refuses a graph as a cycle there is nothing to
compare. Every graph on which it needs fewer partitions is printed.
"""

from __future__ import annotations

import random
import sys
from collections import Counter

import torch
import torch.fx

from pytest_regional._torch.fx_graphs import preserve_node_meta
from pytest_regional._torch.inductor import torch_region_count
from pytest_regional.reference.partition import plan_partitions


def graph_of(seed: int) -> torch.fx.GraphModule:
    """Build a random graph; the same seed gives the same one."""
    draw = random.Random(seed)
    size, ids = draw.randint(5, 60), [None, "a", "b", "c", "d"][: draw.randint(3, 5)]
    reach = draw.choice((2, 8, size))
    graph = torch.fx.Graph()
    values = [graph.placeholder("x"), graph.placeholder("y")]
    for _ in range(size):
        arguments = tuple(values[-1 - draw.randrange(reach) % len(values)] for _ in range(2))
        node = graph.call_function(torch.ops.aten.sub.Tensor, arguments)
        region = draw.choice(ids)
        if region is not None:
            node.meta["custom"] = {"compile_with_inductor": {"inductor_region": region}}
        values.append(node)
    graph.output(tuple(value for value in values[2:] if not value.users))
    return torch.fx.GraphModule({}, graph)


def compare(seed: int) -> str:
    """Say who needs fewer partitions for the graph of ``seed``."""
    plan = plan_partitions(graph_of(seed).graph)
    gm = graph_of(seed)
    try:
        with preserve_node_meta(enable=False):
            theirs = torch_region_count(gm)
    except (AssertionError, RuntimeError):
        return "PyTorch refuses it"
    mine = len(plan.partitions)
    if mine > theirs:
        print(f"seed {seed}: ours {mine}, PyTorch {theirs}, lower bound {plan.least_partitions}")
        print(gm.graph)
    return "equal" if mine == theirs else "ours fewer" if mine < theirs else "PyTorch fewer"


def main() -> None:
    """Print the counts."""
    graphs = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    found = Counter(map(compare, range(graphs)))
    print(f"torch {torch.__version__}, {graphs} graphs: {dict(found.most_common())}")
    compared = graphs - found["PyTorch refuses it"]
    print(f"at most PyTorch's count on {100 * (1 - found['PyTorch fewer'] / max(compared, 1)):.2f} % of {compared}")


if __name__ == "__main__":
    main()
