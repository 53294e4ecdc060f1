"""Compile extracted regions with Inductor and put the compiled callables into the graph."""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
import torch.fx

from pytest_regional._base.errors import RegionalError, RegionalWarning
from pytest_regional._torch import MissingTorchSymbolError
from pytest_regional._torch.autograd_cache import note_refused_keys, refused_keys
from pytest_regional._torch.config import cache_tagged, random_numbers_are_functional, region_compile_settings
from pytest_regional._torch.dynamo import count_fallback, restart_exceptions
from pytest_regional._torch.fx_graphs import clone_alone, is_graph_module, node_for_number
from pytest_regional._torch.inductor import (
    aot_compiled_artifact,
    compiled_output_strides,
    donation_arguments,
    inductor_callable,
    standalone_compile,
)
from pytest_regional._torch.operators import copy_to_strides, hides_a_view, is_op_overload, returns_a_view
from pytest_regional._torch.thread_state import profiler_watch
from pytest_regional._torch.tracing import (
    free_symbols,
    is_fake_tensor,
    is_integer,
    is_symbolic,
    known_equal,
    size_hint,
    storage_key,
)
from pytest_regional.reference.caching.code import region_tag
from pytest_regional.reference.effects import COLLECTIVE, RANDOM, Edge, effect_classes, element_of, written_arguments
from pytest_regional.reference.extract import ExtractedRegion, nodes_of_symbols
from pytest_regional.reference.ordering.carry_over import compile_in_order
from pytest_regional.reference.regions import RegionKey, op_names, shortened, source_line

Strides = Sequence[Any]


def restore_strides(call: torch.fx.Node, actual: Sequence[Strides | None]) -> list[int]:
    """Restore outputs of the compiled ``call`` whose strides differ from the trace; return their indices.

    Args:
        call: The call of a region; its ``getitem`` users hold the traced values.
        actual: Strides of each output; None, or a list that is too short, if unknown.
    """
    inputs = {storage_key(argument.meta.get("val")) for argument in call.all_input_nodes}
    restored = []
    for element in [user for user in call.users if user.target is operator.getitem]:
        index: Any = element.args[1]
        expected = element.meta.get("val")
        if storage_key(expected) in {None, *inputs} or expected.layout is not torch.strided or not expected.dim():
            continue
        known = actual[index] if index < len(actual) else None
        if known is None or _differ(expected, known):
            _restore(element, expected, list(element.users), element.next, is_known=known is not None)
            restored.append(index)
    return restored


def _differ(expected: torch.Tensor, actual: Strides) -> bool:
    """Compare strides, except for dimensions of size one, whose stride is irrelevant."""
    pairs = zip(expected.shape, expected.stride(), actual, strict=True)
    return any(str(stride) != str(other) for size, stride, other in pairs if str(size) != "1")


def restore_input_strides(regions: Sequence[ExtractedRegion], borrowed: Collection[torch.fx.Node]) -> None:
    """Give the regions inputs with traced strides, where an eager operator may return other strides than its fake.

    PyTorch's fake ``native_layer_norm_backward`` does so (2.11 to 2.15), and custom operators may. The value is put
    in order where it is made, so that its views share its memory; the graph returns the value as it was made.

    Args:
        regions: The regions of one graph.
        borrowed: The placeholders whose values an operator of another graph may have made.
    """
    pending = [argument for region in regions for argument in region.call.all_input_nodes]
    if not regions:
        return
    first = next(node for node in regions[0].call.graph.nodes if node.op != "placeholder")
    calls, seen = {region.call for region in regions}, set[torch.fx.Node]()
    while pending:
        node = pending.pop()
        producer = element_of(node) or node
        if node in seen or producer in calls or producer.op == "get_attr":
            continue
        seen.add(node)
        if _has_the_strides_of_its_inputs(producer):
            pending += producer.all_input_nodes
        elif node in borrowed if node.op == "placeholder" else COLLECTIVE not in effect_classes(producer):
            _restore_input(node, first if node.op == "placeholder" else node.next)


def _has_the_strides_of_its_inputs(node: torch.fx.Node) -> bool:
    """Return whether ``node`` is a view or a pointwise operator, whose fake runs the code of the kernel."""
    if not is_op_overload(node.target):
        return False
    is_pointwise = torch.Tag.pointwise in node.target.tags
    return is_pointwise or returns_a_view(node.target) or hides_a_view(node.target)


def _restore_input(node: torch.fx.Node, following: torch.fx.Node) -> None:
    expected = node.meta.get("val")
    if not is_fake_tensor(expected) or expected.layout is not torch.strided or not expected.dim():
        return
    if _is_dense(expected.shape, expected.stride(), _memory_order(expected.shape, expected.stride())):
        users = [user for user in node.users if user.op != "output"]
        _restore(node, expected, users, following, is_known=False)


def _restore(
    element: torch.fx.Node,
    expected: torch.Tensor,
    users: Iterable[torch.fx.Node],
    following: torch.fx.Node,
    *,
    is_known: bool,
) -> None:
    with element.graph.inserting_before(following):
        restored = _restored(element, expected, is_known=is_known)
    # The compiled region ends at the call; nodes after it are not its operators.
    restored.meta = {key: value for key, value in element.meta.items() if key != "custom"}
    for user in users:
        user.replace_input_with(element, restored)


def _restored(element: torch.fx.Node, expected: torch.Tensor, *, is_known: bool) -> torch.fx.Node:
    call, aten = element.graph.call_function, torch.ops.aten
    value, shape = element, list(expected.shape)
    for dim, stride in enumerate(expected.stride()):
        if not is_symbolic(stride) and stride == 0:
            value, shape[dim] = call(aten.slice.Tensor, (value, dim, 0, 1)), 1
    order = _memory_order(shape, expected.stride())
    strides = None if _is_dense(shape, expected.stride(), order) else _stride_nodes(element, expected.stride())
    if strides is None:
        value = _in_order(value, order, memory_is_known=is_known)
    else:
        value = call(copy_to_strides(), (value, strides))
    return value if shape == list(expected.shape) else call(aten.expand_as.default, (value, element))


def _in_order(value: torch.fx.Node, order: list[int], *, memory_is_known: bool) -> torch.fx.Node:
    """Pack ``value`` with its dimensions in ``order``; if it may be so already, only if it is not."""
    call, aten = value.graph.call_function, torch.ops.aten
    is_row_major = order == sorted(order)
    if not is_row_major:
        value = call(aten.permute.default, (value, order))
    if memory_is_known:
        value = call(aten.clone.default, (value,), {"memory_format": torch.contiguous_format})
    else:
        value = call(aten.contiguous.default, (value,))
    if is_row_major:
        return value
    return call(aten.permute.default, (value, [order.index(dim) for dim in range(len(order))]))


def _memory_order(shape: Sequence[Any], strides: Strides) -> list[int]:
    """Return the dimensions from the largest stride to the smallest, in original order for ties."""
    return sorted(range(len(shape)), key=lambda dim: (-size_hint(strides[dim]), -size_hint(shape[dim])))


def _is_dense(shape: Sequence[Any], strides: Strides, order: Sequence[int]) -> bool:
    """Return whether memory in ``order`` surely has no gaps or overlaps, whatever the symbolic sizes are."""
    step: Any = 1
    for dim in reversed(order):
        if not is_symbolic(shape[dim]) and shape[dim] == 1:
            continue
        if not known_equal(strides[dim], step):
            return False
        step = step * shape[dim]
    return True


def _stride_nodes(element: torch.fx.Node, strides: Strides) -> list[Any] | None:
    """Return ``strides`` as numbers and nodes; None if no input of the region provides a symbol in them."""
    needed = {str(name) for stride in strides for name in free_symbols(stride)}
    (region,) = element.all_input_nodes
    bearers = nodes_of_symbols(element.graph, needed, [*region.all_input_nodes, element])
    if bearers.keys() < needed:
        return None
    return [node_for_number(element.graph, stride, bearers) for stride in strides]


Compiled = Callable[..., Sequence[Any]]


def as_graph_target(compiled: Compiled, name: str, *, plain: bool) -> Compiled:
    """Wrap ``compiled`` into a plain function, which FX can print and ``GraphPickler`` can unwrap.

    Args:
        compiled: The compiler's result for the region.
        name: The region's name in the graph.
        plain: The region's ``makes_plain_values``, kept on the function for serialization.
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
    # On its first call a compiled graph checks custom operators and finishes its autotuning.
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
    """Return whether ``region`` maps distinct plain values to new ones, without writes or effects."""
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
    """Return whether ``node`` writes to an input of the region, or has an effect other than random numbers."""
    written = {storage_key(argument.meta.get("val")) for argument in written_arguments(node)}
    return bool(written & {None, *borrowed} or effect_classes(node) - {RANDOM})


def _is_plain(value: Any) -> bool:
    """Return whether a value is an ordinary dense tensor without gradients."""
    return is_fake_tensor(value) and value.layout is torch.strided and not value.requires_grad


@dataclass(frozen=True)
class RegionRequest:
    """A compiler's input for one region; its graph is written at first access."""

    region: ExtractedRegion

    @property
    def name(self) -> str:
        """The region's name in the graph."""
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
        """Pairs ``(before, after)`` of nodes of ``module`` that must run in this order without data flow."""
        return self.region.order_edges

    def rewritten(self) -> tuple[torch.fx.GraphModule, tuple[Edge, ...]]:
        """Return a fresh ``module`` that may be consumed, and ``order`` as its nodes."""
        return self.region.rewritten()

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The (fake) values of the region's inputs."""
        return tuple(border.meta["val"] for border in self.region.inputs)


class RegionCompiler(Protocol):
    """Compiles one region into a callable that takes its inputs and returns a tuple of its outputs."""

    def __call__(self, request: RegionRequest) -> Compiled:
        """Compile ``request``."""


class RegionInputError(RegionalError, RuntimeError):
    """An input of a region has no value in the trace, so it cannot be compiled."""


def compile_with_inductor(request: RegionRequest) -> Compiled:
    """Compile one region through ``torch._inductor.standalone_compile``, with its own configuration patched in."""
    artifact: Compiled = compile_in_order(request.rewritten, functools.partial(_compile_module, request))
    if not isinstance(artifact, aot_compiled_artifact()):
        raise TypeError(
            f"standalone_compile returned {type(artifact).__name__} for {request.name}, not an AOT artifact"
        )
    return artifact


def _compile_module(request: RegionRequest, module: torch.fx.GraphModule) -> Compiled:
    compile_function = standalone_compile()
    tag = cache_tagged(region_tag(module))
    with region_compile_settings(request.key.settings, request.name), tag, refused_keys() as refusals:
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
    """Replace the submodule calls of ``regions`` in ``gm`` with calls of the results of ``compiler``.

    The Python code of ``gm`` is stale afterwards.
    """
    for region in regions:
        compiled = compiler(request_for(region))
        if is_graph_module(compiled):  # not compiled: it runs as a graph
            gm.add_submodule(region.name, compiled)
            continue
        region.call.target = as_graph_target(compiled, region.name, plain=makes_plain_values(region))
        region.call.op = "call_function"
        restore_strides(region.call, compiled_output_strides(compiled, len(region.results)))


def request_for(region: ExtractedRegion) -> RegionRequest:
    """Collect a compiler's input for ``region``.

    Raises:
        RegionInputError: the trace kept no value for one of its inputs.
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
    """Applies a failure policy to a region compiler."""

    compiler: RegionCompiler
    on_region_error: OnRegionError = "raise"

    def __post_init__(self) -> None:
        if self.on_region_error not in ("raise", "eager"):
            raise ValueError(f"on_region_error={self.on_region_error!r} is unknown: use 'raise' or 'eager'")

    def __call__(self, request: RegionRequest) -> Compiled:
        """Compile ``request``.

        Raises:
            RegionCompileError: naming region and ops, if that fails and the policy is ``raise``.
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
