"""Compile extracted regions with Inductor and put the compiled callables into the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.fx

from pytest_regional._torch.region_compile import (
    aot_compiled_artifact,
    compiled_output_strides,
    donation_arguments,
    is_graph_module,
    region_compile_settings,
    standalone_compile,
)
from pytest_regional.reference.extract import ExtractedRegion
from pytest_regional.reference.regions import RegionKey
from pytest_regional.reference.restride import restore_strides

Compiled = Callable[..., Sequence[Any]]


@dataclass(frozen=True)
class RegionRequest:
    """All that a compiler is told: the region's graph, its (fake) inputs, its key, its name."""

    module: torch.fx.GraphModule
    inputs: tuple[Any, ...]
    key: RegionKey
    name: str


class RegionCompiler(Protocol):
    """Turns one region into a callable that takes its inputs and returns a tuple of its outputs."""

    def __call__(self, request: RegionRequest) -> Compiled:
        """Compile what ``request`` describes."""


class RegionInputError(RuntimeError):
    """An input of a region has no value in the trace, so it cannot be compiled."""


def compile_with_inductor(request: RegionRequest) -> Compiled:
    """Compile one region through ``torch._inductor.standalone_compile``, with its own configuration patched in."""
    compile_function = standalone_compile()
    with region_compile_settings(request.key.settings, request.name):
        artifact: Compiled = compile_function(
            request.module,
            list(request.inputs),
            dynamic_shapes="from_tracing_context",
            aot=True,
            **donation_arguments(compile_function),
        )
    if not isinstance(artifact, aot_compiled_artifact()):
        raise TypeError(
            f"standalone_compile returned {type(artifact).__name__} for {request.name}, not an AOT artifact"
        )
    return artifact


def compile_regions(
    gm: torch.fx.GraphModule, regions: Sequence[ExtractedRegion], compiler: RegionCompiler = compile_with_inductor
) -> None:
    """Replace the submodule calls of ``regions`` in ``gm`` by calls of what ``compiler`` makes of them."""
    for region in regions:
        compiled = compiler(request_for(region))
        if is_graph_module(compiled):  # it runs as the graph it is
            setattr(gm, region.name, compiled)
            continue
        region.call.target = as_graph_target(compiled, region.name)
        region.call.op = "call_function"
        restore_strides(region.call, compiled_output_strides(compiled))
        gm.delete_submodule(region.name)
    gm.recompile()


def request_for(region: ExtractedRegion) -> RegionRequest:
    """Collect what the compiler has to know about ``region``.

    Raises:
        RegionInputError: when the trace kept no value for one of its inputs.
    """
    inputs = []
    for placeholder in region.module.graph.find_nodes(op="placeholder"):
        if "val" not in placeholder.meta:
            raise RegionInputError(
                f"input {placeholder.name!r} of {region.name} has no meta['val']: trace the graph with fake tensors, "
                f"or give regional_inductor the example inputs."
            )
        inputs.append(placeholder.meta["val"])
    return RegionRequest(region.module, tuple(inputs), region.partition.key, region.name)


def as_graph_target(compiled: Compiled, name: str) -> Compiled:
    """Wrap ``compiled`` into a plain function, which FX can print and ``GraphPickler`` finds the artifact in."""

    def call(*arguments: Any) -> Sequence[Any]:
        return compiled(*arguments)

    call.__name__ = call.__qualname__ = name
    call.__wrapped__ = compiled  # type: ignore[attr-defined]
    return call
