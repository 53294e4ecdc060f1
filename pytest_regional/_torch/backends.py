"""PyTorch's own backends, as Dynamo backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_regional._torch import symbol


def regional_inductor_backend(partitioner: str = "default") -> Callable[..., Any]:
    """Return ``regional_inductor`` as forward, backward and inference compiler of ``aot_autograd`` (2.11 to 2.15).

    Node metadata is preserved around it because annotations travel in it. ``partitioner`` is ``default`` or
    ``min_cut``, as AOTAutograd's partitioners are called.
    """
    import torch.fx.traceback

    from pytest_regional._torch.region_compile import partition_function

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


def registered_names(wanted: str = "") -> tuple[str, ...]:
    """Return the names that ``torch.compile`` takes (``torch._dynamo.list_backends``, 2.11 to 2.15).

    Backends for debugging and experiments are no choice to offer: of those only ``wanted`` is named.
    """
    list_backends = symbol("torch._dynamo.backends.registry", "list_backends")
    every = list_backends(exclude_tags=())
    return (*list_backends(), *(name for name in every if name == wanted and name not in list_backends()))


def invalid_backend_error() -> type[Exception]:
    """Return what ``lookup_backend`` raises where no backend has the name (``torch._dynamo.exc``, 2.11 to 2.15)."""
    error: type[Exception] = symbol("torch._dynamo.exc", "InvalidBackend")
    return error


def regional_inductor_pass() -> Callable[..., Any]:
    """Return PyTorch's ``regional_inductor`` as a pass of one graph and its inputs (2.11 to 2.15)."""
    compiler = symbol("torch.fx.passes.regional_inductor", "regional_inductor")

    def torch_regional_inductor(gm: Any, example_inputs: Any) -> Any:
        return compiler(gm, *example_inputs)

    return torch_regional_inductor


def compilers_of(backend: Any) -> tuple[Any, ...]:
    """Return the compilers that ``aot_autograd(...)`` was given, or the one that AOTAutograd's wrapper holds.

    They are in the ``kwargs`` of an ``AotAutograd``, and ``compiler_fn`` of a ``SerializableAOTDispatchCompiler`` (2.11
    to 2.15); of anything else there are none.
    """
    if isinstance(backend, symbol("torch._dynamo.backends.common", "AotAutograd")):
        names = ("fw_compiler", "bw_compiler", "inference_compiler")
        return tuple(backend.kwargs[name] for name in names if backend.kwargs.get(name) is not None)
    if isinstance(backend, symbol("torch._functorch.aot_autograd", "SerializableAOTDispatchCompiler")):
        return (backend.compiler_fn,)
    return ()


def dynamo_backend_of(output_graph: Any) -> Any:
    """Return the backend that Dynamo is about to hand a graph to, in Dynamo's wrappers (2.11 to 2.15)."""
    return output_graph.compiler_fn


def regional_inductor() -> Callable[..., Any]:
    """Return PyTorch's compiler of regions itself, ``regional_inductor(gm, *inputs)`` (2.11 to 2.15)."""
    compiler: Callable[..., Any] = symbol("torch.fx.passes.regional_inductor", "regional_inductor")
    return compiler
