"""The Dynamo backend: ``torch.compile(fn, backend="regional")``."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from pytest_regional._base.cache_keys import CacheKey
from pytest_regional._base.errors import RegionalValueError
from pytest_regional._torch.autograd_cache import UncacheableGraphError, caches_are_on
from pytest_regional._torch.config import Timing, force_autograd_cache
from pytest_regional._torch.dynamo import aot_autograd
from pytest_regional._torch.fx_graphs import preserve_node_meta
from pytest_regional._torch.inductor import regional_output_code
from pytest_regional._torch.patching import AnsweredError
from pytest_regional._torch.tracing import python_dispatcher
from pytest_regional.reference import compile_regions, pass_protocol
from pytest_regional.reference.caching import container, store
from pytest_regional.reference.caching.outer import OuterCache, annotations_in_pytorchs_key
from pytest_regional.reference.caching.store import open_store
from pytest_regional.reference.compile_regions import Memory
from pytest_regional.reference.gradients import partitioner_for
from pytest_regional.reference.options import BackendOptions, OnRegionError, Partitioner
from pytest_regional.reference.pass_protocol import plan_pre_grad, pre_grad_passes_done
from pytest_regional.reference.regional_inductor import compile_annotated


def regional(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    partitioner: Partitioner | None = None,
    share_identical: bool | None = None,
    on_region_error: OnRegionError | None = None,
    outer_cache: bool | None = None,
    pre_grad_pass_timing: Timing | None = None,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile the annotated regions of a Dynamo graph, or load them; the rest runs as eager ATen.

    Args:
        gm: The graph that Dynamo captured.
        example_inputs: Its (fake) inputs.
        partitioner: See :class:`BackendOptions`, as for the next four.
        share_identical: As above.
        on_region_error: As above.
        outer_cache: As above.
        pre_grad_pass_timing: As above.
        options: The same five as a dictionary: ``torch.compile(fn, backend="regional", options={...})``.
        mode: Inductor's presets, which this backend refuses: configs belong to regions.

    Raises:
        RegionalValueError: an unknown option, an invalid value, or a mode.
        PreGradPassError: pre-grad passes that cannot run with their timing.
    """
    if mode is not None:
        raise RegionalValueError(
            f"backend 'regional' takes no mode ({mode!r}): give its settings "
            f"(torch._inductor.list_mode_options()) as inductor_configs of a region."
        )
    chosen = BackendOptions.merged(
        options,
        partitioner=partitioner,
        share_identical=share_identical,
        on_region_error=on_region_error,
        outer_cache=outer_cache,
        pre_grad_pass_timing=pre_grad_pass_timing,
    )
    return compile_dynamo_graph(gm, example_inputs, chosen)


def compile_dynamo_graph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    chosen: BackendOptions,
    *,
    found: list[CacheKey] | None = None,
) -> Callable[..., Any]:
    """Compile with merged options; with ``found``, add only the key in the outer cache to it, and raise."""
    memory: Memory = {}

    def compile_graph(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> torch.fx.GraphModule:
        with pre_grad_passes_done():  # a backward may compile after the others are done
            return compile_annotated(
                graph,
                inputs,
                share_identical=chosen.share_identical,
                on_region_error=chosen.on_region_error,
                memory=memory,
            )

    plan = plan_pre_grad(chosen.pre_grad_pass_timing)
    uncached = found is None and not (chosen.outer_cache and caches_are_on())
    if plan.early or uncached:
        plan.run(gm)
    with pre_grad_passes_done(), preserve_node_meta():
        if uncached:
            compiler = _seen_by_pytorch_cache(compile_graph)
            with annotations_in_pytorchs_key(gm) if force_autograd_cache() else contextlib.nullcontext():
                return through_aot_autograd(gm, example_inputs, chosen.partitioner, fw_compiler=compiler)
        cache = OuterCache(open_store(), chosen, plan, found)
        return cache.compile(functools.partial(_backend, chosen.partitioner), gm, example_inputs, compile_graph)


def through_aot_autograd(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    partitioner: Partitioner,
    **compilers: Callable[[torch.fx.GraphModule, Sequence[Any]], Any],
) -> Callable[..., Any]:
    """Pass ``gm`` to AOTAutograd as the backend does, with ``compilers`` (``fw_compiler`` and so on)."""
    with preserve_node_meta():
        compiled: Callable[..., Any] = _backend(partitioner, compilers)(gm, example_inputs)
    return compiled


def _backend(partitioner: Partitioner, compilers: Mapping[str, Any]) -> Callable[..., Any]:
    backend = aot_autograd(**compilers, partition_fn=partitioner_for(partitioner))

    def compile_as_inductor_does(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        # Otherwise an input with a size that the trace made constant would stay symbolic, and the program would have
        # another key than one traced with that size.
        with python_dispatcher():
            compiled: Callable[..., Any] = backend(gm, example_inputs)
        return compiled

    return compile_as_inductor_does


def _seen_by_pytorch_cache(
    compile_graph: Callable[[torch.fx.GraphModule, Sequence[Any]], torch.fx.GraphModule],
) -> Callable[[torch.fx.GraphModule, Sequence[Any]], Any]:
    """Return a graph that PyTorch's own cache can store, if that is used instead of the outer cache."""

    def compile_for_pytorch(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        compiled = compile_graph(graph, inputs)
        return regional_output_code(compiled) if force_autograd_cache() else compiled

    return compile_for_pytorch


def clear_caches() -> None:
    """Clear compiled regions, given warnings, and failed servers; files on disk stay."""
    compile_regions.clear_caches()
    pass_protocol.reset_warnings()
    container.reset_warnings()
    store.reset_failures()


def cache_key(
    fn: Callable[..., Any],
    *inputs: Any,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
) -> str:
    """Return the key of ``torch.compile(fn, backend="regional")`` in the outer cache, in hexadecimal.

    Nothing is compiled or stored, and ``fn`` does not run. ``early`` pre-grad passes run on a copy of the graph, since
    the graph after them is part of the key.

    Args:
        fn: a function or module that Dynamo captures as one graph.
        inputs: its arguments.
        dynamic: as ``torch.compile``'s.
        options: as ``torch.compile``'s with ``backend="regional"``.

    Raises:
        UncacheableGraphError: the outer cache is bypassed for this program; the message says why.
    """
    chosen = BackendOptions.merged(options)
    found: list[CacheKey] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        return compile_dynamo_graph(gm, example_inputs, chosen, found=found)

    try:
        torch.compile(fn, backend=backend, dynamic=dynamic, fullgraph=True)(*inputs)
    except Exception:
        # Dynamo wraps every exception that ends a compile.
        if not found:
            raise
    if not found:
        raise UncacheableGraphError("nothing in it is compiled: Dynamo passed no graph to the backend")
    key = found[0]
    if not key.key:
        raise UncacheableGraphError(key.refusal)
    return key.key


def explain_key(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> CacheKey:
    """Return the key that the backend looks ``gm`` up with; nothing is compiled, looked up or stored.

    Pre-grad passes that run before the lookup change ``gm``.

    Args:
        gm: a graph that Dynamo captured.
        example_inputs: its (fake) inputs.
        options: of the backend.
    """
    chosen = BackendOptions.merged(options)
    if not (chosen.outer_cache and caches_are_on()):
        return CacheKey("", "the outer cache is switched off")
    found: list[CacheKey] = []
    try:
        compile_dynamo_graph(gm, example_inputs, chosen, found=found)
    except AnsweredError:
        return found[0]
    return CacheKey("", "AOTAutograd looks up no cache for it")
