"""PyTorch's own backends, as Dynamo backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import symbol


def regional_inductor_backend(partitioner: str = "default") -> Callable[..., Any]:
    """Return ``regional_inductor`` as forward, backward and inference compiler of ``aot_autograd`` (2.11 to 2.15).

    Node metadata is preserved around it because annotations travel in it. ``partitioner`` is ``default`` or
    ``min_cut``, as AOTAutograd's partitioners are called.
    """
    import torch.fx.traceback

    from .region_compile import partition_function

    compiler = symbol("torch.fx.passes.regional_inductor", "regional_inductor")
    aot_autograd = symbol("torch._dynamo.backends.common", "aot_autograd")
    partition = partition_function(partitioner)
    backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, partition_fn=partition)

    def torch_regional_inductor(gm: Any, example_inputs: Any) -> Any:
        with torch.fx.traceback.preserve_node_meta(enable=True):
            return backend(gm, example_inputs)

    return torch_regional_inductor


def registered_backend(name: str) -> Callable[..., Any]:
    """Return the Dynamo backend registered as ``name`` (``torch._dynamo.backends.registry``, 2.11 to 2.15)."""
    backend: Callable[..., Any] = symbol("torch._dynamo.backends.registry", "lookup_backend")(name)
    return backend


def regional_inductor_pass() -> Callable[..., Any]:
    """Return PyTorch's ``regional_inductor`` as a pass of one graph and its inputs (2.11 to 2.15)."""
    compiler = symbol("torch.fx.passes.regional_inductor", "regional_inductor")

    def torch_regional_inductor(gm: Any, example_inputs: Any) -> Any:
        return compiler(gm, *example_inputs)

    return torch_regional_inductor
