"""The Dynamo backend: ``torch.compile(fn, backend="regional")``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.fx

from pytest_regional._torch.annotations import preserve_node_meta
from pytest_regional._torch.region_compile import aot_autograd, partition_function
from pytest_regional.reference.regional_inductor import regional_inductor


def regional(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, partitioner: str = "default"
) -> Callable[..., Any]:
    """Compile the annotated regions of a Dynamo graph; the rest runs as eager ATen.

    Args:
        gm: The graph that Dynamo captured.
        example_inputs: Its (fake) inputs.
        partitioner: How AOTAutograd splits forward from backward: ``default`` or ``min_cut``.
    """
    backend = aot_autograd(fw_compiler=_compile, bw_compiler=_compile, partition_fn=partition_function(partitioner))
    with preserve_node_meta():
        compiled: Callable[..., Any] = backend(gm, example_inputs)
    return compiled


def _compile(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    return regional_inductor(gm, *example_inputs)
