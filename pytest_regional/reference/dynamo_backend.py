"""The Dynamo backend: ``torch.compile(fn, backend="regional")``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch.fx

from pytest_regional._torch.annotations import preserve_node_meta
from pytest_regional._torch.region_compile import aot_autograd, partition_function
from pytest_regional.reference.compile_regions import compile_with_inductor
from pytest_regional.reference.cse import cse_within_regions
from pytest_regional.reference.regional_inductor import regional_inductor
from pytest_regional.reference.share import SharedCompiler


def regional(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    partitioner: Literal["default", "min_cut"] = "default",
    share_identical: bool = True,
) -> Callable[..., Any]:
    """Compile the annotated regions of a Dynamo graph; the rest runs as eager ATen.

    Args:
        gm: The graph that Dynamo captured.
        example_inputs: Its (fake) inputs.
        partitioner: How AOTAutograd splits forward from backward: ``default`` or ``min_cut``.
        share_identical: Whether equal partitions, also of forward and backward, are compiled once.
    """
    compiler = SharedCompiler(compile_with_inductor) if share_identical else compile_with_inductor

    def compile_graph(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return regional_inductor(graph, *inputs, share_identical=False, compiler=compiler)

    partition = partition_function(partitioner)
    if partitioner == "min_cut":
        partition = cse_within_regions(partition)
    backend = aot_autograd(fw_compiler=compile_graph, bw_compiler=compile_graph, partition_fn=partition)
    with preserve_node_meta():
        compiled: Callable[..., Any] = backend(gm, example_inputs)
    return compiled
