"""Compile extracted regions with Inductor and put the compiled callables into the graph."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.fx

from pytest_regional._torch.region_compile import (
    aot_compiled_artifact,
    compiled_output_strides,
    donation_arguments,
    is_graph_module,
    note_refused_keys,
    refused_keys,
    region_compile_settings,
    standalone_compile,
)
from pytest_regional.reference.calling import Compiled, as_graph_target, makes_plain_values
from pytest_regional.reference.effects import Edge
from pytest_regional.reference.extract import ExtractedRegion
from pytest_regional.reference.ordering.carry import compile_in_order
from pytest_regional.reference.regions import RegionKey
from pytest_regional.reference.restride import restore_strides


@dataclass(frozen=True)
class RegionRequest:
    """All that a compiler is told of one region; its graph is written when it is first looked at."""

    region: ExtractedRegion

    @property
    def name(self) -> str:
        """The name that the region has in the graph."""
        return self.region.name

    @property
    def key(self) -> RegionKey:
        """The region key: id and configs."""
        return self.region.partition.key

    @property
    def module(self) -> torch.fx.GraphModule:
        """The region's graph, which a compiler may consume."""
        return self.region.module

    @property
    def order(self) -> tuple[Edge, ...]:
        """Pairs ``(before, after)`` of nodes of ``module`` that have to run in this order though no value says so."""
        return self.region.order_edges

    def written_anew(self) -> tuple[torch.fx.GraphModule, tuple[Edge, ...]]:
        """Return a fresh ``module`` that may be consumed, and ``order`` as its nodes."""
        return self.region.written_anew()

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The (fake) values of the region's inputs."""
        return tuple(border.meta["val"] for border in self.region.inputs)


class RegionCompiler(Protocol):
    """Turns one region into a callable that takes its inputs and returns a tuple of its outputs."""

    def __call__(self, request: RegionRequest) -> Compiled:
        """Compile what ``request`` describes."""


class RegionInputError(RuntimeError):
    """An input of a region has no value in the trace, so it cannot be compiled."""


def compile_with_inductor(request: RegionRequest) -> Compiled:
    """Compile one region through ``torch._inductor.standalone_compile``, with its own configuration patched in."""
    artifact: Compiled = compile_in_order(request.written_anew, functools.partial(_compile_module, request))
    if not isinstance(artifact, aot_compiled_artifact()):
        raise TypeError(
            f"standalone_compile returned {type(artifact).__name__} for {request.name}, not an AOT artifact"
        )
    return artifact


def _compile_module(request: RegionRequest, module: torch.fx.GraphModule) -> Compiled:
    compile_function = standalone_compile()
    with region_compile_settings(request.key.settings, request.name), refused_keys() as refusals:
        compiled: Compiled = compile_function(
            module,
            list(request.inputs),
            dynamic_shapes="from_tracing_context",
            aot=True,
            **donation_arguments(compile_function),
        )
    if refusals:
        note_refused_keys(compiled, refusals)
    return compiled


def compile_regions(
    gm: torch.fx.GraphModule, regions: Sequence[ExtractedRegion], compiler: RegionCompiler = compile_with_inductor
) -> None:
    """Replace the submodule calls of ``regions`` in ``gm`` by calls of what ``compiler`` makes of them."""
    for region in regions:
        compiled = compiler(request_for(region))
        if is_graph_module(compiled):  # it runs as the graph it is
            gm.add_submodule(region.name, compiled)
            continue
        region.call.target = as_graph_target(compiled, region.name, plain=makes_plain_values(region))
        region.call.op = "call_function"
        restore_strides(region.call, compiled_output_strides(compiled, len(region.results)))
    gm.recompile()


def request_for(region: ExtractedRegion) -> RegionRequest:
    """Collect what the compiler has to know about ``region``.

    Raises:
        RegionInputError: when the trace kept no value for one of its inputs.
    """
    for border in region.inputs:
        if "val" not in border.meta:
            raise RegionInputError(
                f"input {border.name!r} of {region.name} has no meta['val']: trace the graph with fake tensors, "
                f"or give regional_inductor the example inputs."
            )
    return RegionRequest(region)
