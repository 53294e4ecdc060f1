"""The Dynamo backend: ``torch.compile(fn, backend="regional")``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch.fx

from pytest_regional._torch.annotations import preserve_node_meta
from pytest_regional._torch.region_compile import aot_autograd, partition_function
from pytest_regional.reference.cse import cse_within_regions
from pytest_regional.reference.failure import OnRegionError
from pytest_regional.reference.pre_grad import pre_grad_passes_done, run_pre_grad_passes
from pytest_regional.reference.regional_inductor import regional_inductor
from pytest_regional.reference.share import Memory


def regional(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    partitioner: Literal["default", "min_cut"] = "default",
    share_identical: bool = True,
    on_region_error: OnRegionError = "raise",
) -> Callable[..., Any]:
    """Compile the annotated regions of a Dynamo graph; the rest runs as eager ATen.

    Args:
        gm: The graph that Dynamo captured.
        example_inputs: Its (fake) inputs.
        partitioner: How AOTAutograd splits forward from backward: ``default`` or ``min_cut``.
        share_identical: Whether equal partitions, also of forward and backward, are compiled once.
        on_region_error: ``raise`` a RegionCompileError, or run that region ``eager`` with one warning.
    """
    memory: Memory = {}

    def compile_graph(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        with pre_grad_passes_done():
            return regional_inductor(
                graph, *inputs, share_identical=share_identical, on_region_error=on_region_error, memory=memory
            )

    partition = partition_function(partitioner)
    if partitioner == "min_cut":
        partition = cse_within_regions(partition)
    backend = aot_autograd(fw_compiler=compile_graph, bw_compiler=compile_graph, partition_fn=partition)
    run_pre_grad_passes(gm)
    with preserve_node_meta():
        compiled: Callable[..., Any] = backend(gm, example_inputs)
    return compiled
