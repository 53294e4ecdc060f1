"""``regional_inductor``: the graph pass, a drop-in for PyTorch's own of the same name."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from pytest_regional._base.errors import RegionalRuntimeError
from pytest_regional._torch.aot_autograd import donate_nothing
from pytest_regional._torch.config import force_autograd_cache
from pytest_regional._torch.fx_graphs import called_attributes, preserve_node_meta, set_attribute, use_boxed_codegen
from pytest_regional._torch.inductor import regional_output_code
from pytest_regional._torch.tracing import (
    as_fake,
    compile_lock,
    current_fake_mode,
    detect_fake_mode,
    new_fake_mode,
    propagate_fake_values,
    tracing,
)
from pytest_regional.reference.compile_regions import (
    GuardedCompiler,
    Memory,
    RegionCompiler,
    SharedCompiler,
    compile_regions,
    compile_with_inductor,
    restore_input_strides,
)
from pytest_regional.reference.extract import (
    ExtractedRegion,
    bodies_inside,
    extract_partitions,
    install_submodules,
    pass_missing_symbols,
)
from pytest_regional.reference.gradients import describe_repeated_draws
from pytest_regional.reference.options import OnRegionError
from pytest_regional.reference.ordering.whole_regions import plan_in_order, warn_of_unknown_regions
from pytest_regional.reference.pass_protocol import DEFAULT_GRAPHS, OWN_CODE, Pass


def regional_inductor(
    gm: torch.fx.GraphModule,
    *example_args: object,
    share_identical: bool = True,
    on_region_error: OnRegionError = "raise",
    compiler: RegionCompiler = compile_with_inductor,
    memory: Memory | None = None,
) -> Any:
    """Compile the annotated regions of ``gm`` and leave the rest unchanged.

    Args:
        gm: An ATen graph, as from AOTAutograd or ``make_fx``.
        example_args: Inputs for fake values, if ``gm`` has none and no tracing context is active.
        share_identical: Whether partitions equal up to names are compiled once.
        on_region_error: ``raise`` a RegionCompileError, or run that region ``eager`` with one warning.
        compiler: Compiles one region.
        memory: Shared by the graphs of one compile, forward and backward.

    Returns:
        ``gm``, rewritten to take and clear one list of inputs; wrapped in PyTorch's ``RegionalOutputCode`` while
        ``torch._functorch.config.force_autograd_cache`` is on.
    """
    compiled = compile_annotated(
        gm,
        example_args,
        share_identical=share_identical,
        on_region_error=on_region_error,
        compiler=compiler,
        memory=memory,
    )
    return regional_output_code(compiled) if force_autograd_cache() else compiled


def compile_annotated(
    gm: torch.fx.GraphModule,
    example_args: Sequence[object],
    *,
    share_identical: bool = True,
    on_region_error: OnRegionError = "raise",
    compiler: RegionCompiler = compile_with_inductor,
    memory: Memory | None = None,
) -> torch.fx.GraphModule:
    """Compile like ``regional_inductor``; the result is always ``gm`` itself."""
    across_modules = compiler is compile_with_inductor
    compiler = GuardedCompiler(compiler, on_region_error)
    if share_identical:
        compiler = SharedCompiler(compiler, memory, across_modules=across_modules)
    warn_of_unknown_regions(gm.graph)
    donate_nothing()  # a region does not know which values the whole graph may overwrite
    with compile_lock(), preserve_node_meta(enable=False), _tracing_context(gm, example_args):
        _for_each_graph(gm, functools.partial(_compile_graph, compiler=compiler, whole=gm), set())
    return gm


def split_regions(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Make every partition of ``gm`` a submodule ``compiled_region_<id>_<n>``, without compiling it.

    This is the first half of ``regional_inductor``, for tests and tools that inspect partitions: each is a
    ``call_module`` node. ``gm`` itself is rewritten, bodies of higher-order ops included, and returned.
    """
    with preserve_node_meta(enable=False):
        _for_each_graph(gm, install_submodules, set())
    return gm


def _for_each_graph(
    gm: torch.fx.GraphModule,
    finish: Callable[[torch.fx.GraphModule, Sequence[ExtractedRegion]], None],
    done: set[int],
) -> None:
    """Extract the regions of ``gm``, and those of the bodies that stayed outside all regions, each body once."""
    done.add(id(gm))
    describe_repeated_draws(gm.graph)
    plan = plan_in_order(gm.graph)
    regions = extract_partitions(gm, plan.partitions, plan.edges)
    carried = bodies_inside(regions)
    for path, body in called_attributes(gm).items():
        if id(body) in done:
            continue
        if id(body) in carried:
            body = copy.deepcopy(body)
            set_attribute(gm, path, body)
        _for_each_graph(body, finish, done)
    finish(gm, regions)


def _compile_graph(
    gm: torch.fx.GraphModule, regions: Sequence[ExtractedRegion], compiler: RegionCompiler, whole: torch.fx.GraphModule
) -> None:
    """Compile the regions of ``gm``, which is ``whole`` or the body of one of its operators; ``whole`` is boxed."""
    pass_missing_symbols(gm, regions)
    compile_regions(gm, regions, compiler)
    restore_input_strides(regions, _borrowed(gm.graph, is_body=gm is not whole))
    if gm is whole:
        use_boxed_codegen(gm)
    else:
        gm.recompile()


def _borrowed(graph: torch.fx.Graph, *, is_body: bool) -> set[torch.fx.Node]:
    """Return the placeholders of a body, and those of a backward whose values AOTAutograd's forward saved.

    Dynamo guards the strides of ``primals``, and AOTAutograd restores those of ``tangents``, which a backward takes.
    """
    placeholders = graph.find_nodes(op="placeholder")
    if is_body:
        return set(placeholders)
    if not any("tangents" in node.name for node in placeholders):
        return set()
    return {node for node in placeholders if not node.name.startswith(("primals", "tangents"))}


def _tracing_context(
    gm: torch.fx.GraphModule, example_args: Sequence[object]
) -> contextlib.AbstractContextManager[Any]:
    """Use the ambient tracing context, or make one from the graph's values or the example inputs."""
    if current_fake_mode() is not None:
        return contextlib.nullcontext()
    fake_mode = first_fake_mode(gm)
    if fake_mode is None:
        inputs = len(gm.graph.find_nodes(op="placeholder"))
        if inputs != len(example_args):
            raise RegionalRuntimeError(
                f"regional_inductor was called outside torch.compile on a graph without fake values, with "
                f"{len(example_args)} example inputs for {inputs} placeholders: pass one for each, or trace "
                f"the graph with make_fx(tracing_mode='fake')."
            )
        fake_mode = give_fake_values(gm, example_args)
    return tracing(fake_mode)


def first_fake_mode(gm: torch.fx.GraphModule) -> Any:
    """Return the fake mode of the first value with one: ``make_fx`` with real tensors gives each its own."""
    modes = (detect_fake_mode([node.meta["val"]]) for node in gm.graph.nodes if "val" in node.meta)
    return next((mode for mode in modes if mode is not None), None)


def give_fake_values(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    """Give the nodes of ``gm`` fake values that follow from its inputs; return their fake mode."""
    fake_mode = detect_fake_mode(example_inputs) or current_fake_mode() or new_fake_mode()
    inputs = [as_fake(value, fake_mode) if isinstance(value, torch.Tensor) else value for value in example_inputs]
    propagate_fake_values(gm, inputs, fake_mode)
    return fake_mode


@dataclass(frozen=True)
class RegionalInductor(Pass):
    """Compiles the annotated regions: :func:`regional_inductor` as a terminal pass.

    Attributes:
        share_identical: Whether partitions equal up to names are compiled once.
        on_region_error: ``raise`` a RegionCompileError, or run that region ``eager`` with one warning.
    """

    name = "regional_inductor"
    terminal = True
    version = (OWN_CODE, torch.__version__)
    share_identical: bool = True
    on_region_error: OnRegionError = "raise"
    graphs: tuple[str, ...] = DEFAULT_GRAPHS

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any] = ()) -> Any:
        """Return ``gm`` with its regions compiled; it takes and clears one list of inputs."""
        return regional_inductor(
            gm, *example_inputs, share_identical=self.share_identical, on_region_error=self.on_region_error
        )


# In a list of passes the function is equivalent to RegionalInductor().
regional_inductor.terminal = RegionalInductor.terminal  # type: ignore[attr-defined]
regional_inductor.uuid = RegionalInductor().uuid  # type: ignore[attr-defined]
