"""Compile extracted regions with Inductor and put the compiled callables into the graph."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
import torch.fx

from pytest_regional._errors import RegionalError, RegionalWarning
from pytest_regional._torch import MissingTorchSymbolError
from pytest_regional._torch.autograd_cache import note_refused_keys, refused_keys
from pytest_regional._torch.config import random_numbers_are_functional, region_compile_settings
from pytest_regional._torch.dynamo import count_fallback, restart_exceptions
from pytest_regional._torch.fx_graphs import clone_alone, is_graph_module
from pytest_regional._torch.inductor import (
    aot_compiled_artifact,
    compiled_output_strides,
    donation_arguments,
    inductor_callable,
    standalone_compile,
)
from pytest_regional._torch.thread_state import profiler_watch
from pytest_regional._torch.tracing import is_fake_tensor, is_integer, storage_key
from pytest_regional.reference.effects import RANDOM, Edge, effect_classes, written_arguments
from pytest_regional.reference.extract import ExtractedRegion
from pytest_regional.reference.ordering.carry_over import compile_in_order
from pytest_regional.reference.regions import RegionKey, op_names, shortened, source_line
from pytest_regional.reference.restride import restore_strides

Compiled = Callable[..., Sequence[Any]]


def as_graph_target(compiled: Compiled, name: str, *, plain: bool) -> Compiled:
    """Wrap ``compiled`` into a plain function, which FX can print and ``GraphPickler`` finds the artifact in.

    Args:
        compiled: What the compiler made of the region.
        name: Of the region in the graph.
        plain: What ``makes_plain_values`` says of the region; kept on the function for whoever stores it.
    """
    direct = inductor_callable(compiled) if plain else None
    call = _checked_call(compiled) if direct is None else _direct_call(compiled, direct)
    call.__name__ = call.__qualname__ = name
    call.__wrapped__ = compiled  # type: ignore[attr-defined]
    call.makes_plain_values = plain  # type: ignore[attr-defined]
    return call


def _checked_call(compiled: Compiled) -> Compiled:
    def call(*arguments: Any) -> Sequence[Any]:
        return compiled(*arguments)

    return call


def _direct_call(compiled: Compiled, direct: Callable[[list[Any]], Sequence[Any]]) -> Compiled:
    # On its first call a compiled graph checks custom operators and closes its autotuning.
    is_first = True
    is_grad_enabled, profiler_runs = torch.is_grad_enabled, profiler_watch()

    def call(*arguments: Any) -> Sequence[Any]:
        nonlocal is_first
        if is_first or profiler_runs() or is_grad_enabled():
            is_first = False
            return compiled(*arguments)
        return direct(list(arguments))

    return call


def makes_plain_values(region: ExtractedRegion) -> bool:
    """Return whether ``region`` maps distinct plain values to new ones, writes to none and has no effects."""
    inputs = [border.meta.get("val") for border in region.inputs]
    results = [node.meta.get("val") for node in region.results]
    if not all(_is_plain(value) or is_integer(value) for value in inputs) or not all(map(_is_plain, results)):
        return False
    tensors = [value for value in inputs if not is_integer(value)]
    if len({id(value) for value in tensors}) < len(tensors) or region.attributes or random_numbers_are_functional():
        return False
    borrowed, made = {storage_key(value) for value in tensors}, {storage_key(value) for value in results}
    if len(made) < len(results) or not borrowed.isdisjoint(made):
        return False
    return not any(_touches(node, borrowed) for node in region.partition.nodes)


def _touches(node: torch.fx.Node, borrowed: set[int | None]) -> bool:
    """Return whether ``node`` writes to what the region was given, or acts on the world beyond random numbers."""
    written = {storage_key(argument.meta.get("val")) for argument in written_arguments(node)}
    return bool(written & {None, *borrowed} or effect_classes(node) - {RANDOM})


def _is_plain(value: Any) -> bool:
    """Tell ordinary dense tensors that no gradient flows through."""
    return is_fake_tensor(value) and value.layout is torch.strided and not value.requires_grad


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


class RegionInputError(RegionalError, RuntimeError):
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


OnRegionError = Literal["raise", "eager"]


class RegionCompileError(RegionalError, RuntimeError):
    """Inductor failed on a region; the cause is chained."""


class RegionFallbackWarning(RegionalWarning):
    """A region runs eagerly because it did not compile."""


@dataclass(frozen=True)
class GuardedCompiler:
    """A region compiler that applies a failure policy to another."""

    compiler: RegionCompiler
    on_region_error: OnRegionError = "raise"

    def __post_init__(self) -> None:
        if self.on_region_error not in ("raise", "eager"):
            raise ValueError(f"on_region_error={self.on_region_error!r} is unknown: use 'raise' or 'eager'")

    def __call__(self, request: RegionRequest) -> Compiled:
        """Compile ``request``.

        Raises:
            RegionCompileError: naming region and ops, when that fails and the policy is ``raise``.
        """
        spare: Compiled | None = clone_alone(request.module) if self.on_region_error == "eager" else None
        try:
            return self.compiler(request)
        except Exception as error:
            if isinstance(error, (*restart_exceptions(), MissingTorchSymbolError, RegionInputError)):
                raise
            failure = RegionCompileError(_describe(request, error))
            if spare is None:
                raise failure from error
            warnings.warn(f"{failure}; it runs eagerly", RegionFallbackWarning, stacklevel=2)
            count_fallback()
            return spare


def _describe(request: RegionRequest, error: Exception) -> str:
    nodes = request.region.partition.nodes
    line = source_line(nodes)
    where = f", from {line}" if line else ""
    reason = str(error).strip().splitlines() or [""]
    return (
        f"region {request.key.label!r} ({request.name}: {shortened(op_names(nodes))}{where}) did not compile: "
        f"{type(error).__name__}: {reason[0]}"
    )
