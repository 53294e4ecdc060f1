"""The Dynamo backend: ``torch.compile(fn, backend="regional")``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.fx

from pytest_regional._torch.annotations import preserve_node_meta
from pytest_regional._torch.region_compile import aot_autograd
from pytest_regional.reference.failure import OnRegionError
from pytest_regional.reference.options import BackendOptionError, BackendOptions, Partitioner
from pytest_regional.reference.partitioners import partitioner_for
from pytest_regional.reference.pre_grad import pre_grad_passes_done, run_pre_grad_passes
from pytest_regional.reference.regional_inductor import regional_inductor
from pytest_regional.reference.share import Memory


def regional(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    partitioner: Partitioner | None = None,
    share_identical: bool | None = None,
    on_region_error: OnRegionError | None = None,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile the annotated regions of a Dynamo graph; the rest runs as eager ATen.

    Args:
        gm: The graph that Dynamo captured.
        example_inputs: Its (fake) inputs.
        partitioner: See :class:`BackendOptions`, as for the next two.
        share_identical: As above.
        on_region_error: As above.
        options: The same three as a dictionary: ``torch.compile(fn, backend="regional", options={...})``.
        mode: Inductor's presets, which this backend refuses: configs belong to regions.

    Raises:
        BackendOptionError: for an unknown option, a value it does not take, or a mode.
    """
    if mode is not None:
        raise BackendOptionError(
            f"backend 'regional' takes no mode ({mode!r}): give the settings that it stands for "
            f"(torch._inductor.list_mode_options()) as inductor_configs of a region."
        )
    chosen = BackendOptions.merged(
        options, partitioner=partitioner, share_identical=share_identical, on_region_error=on_region_error
    )
    memory: Memory = {}

    def compile_graph(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        with pre_grad_passes_done():
            return regional_inductor(
                graph,
                *inputs,
                share_identical=chosen.share_identical,
                on_region_error=chosen.on_region_error,
                memory=memory,
            )

    compilers = {"fw_compiler": compile_graph, "bw_compiler": compile_graph}
    return through_aot_autograd(gm, example_inputs, chosen.partitioner, **compilers)


def through_aot_autograd(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    partitioner: Partitioner,
    **compilers: Callable[[torch.fx.GraphModule, Sequence[Any]], Any],
) -> Callable[..., Any]:
    """Hand ``gm`` to AOTAutograd as the backend does; ``compilers`` get its graphs (``fw_compiler`` and so on)."""
    backend = aot_autograd(**compilers, partition_fn=partitioner_for(partitioner))
    run_pre_grad_passes(gm)
    with preserve_node_meta():
        compiled: Callable[..., Any] = backend(gm, example_inputs)
    return compiled
