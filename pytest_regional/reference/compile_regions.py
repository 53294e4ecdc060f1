"""Compile extracted regions with Inductor, equal ones once, and put the compiled callables into the graph.

Fingerprints of partitions: equal up to names means interchangeable. They include ops, arguments, the metadata of every
value (dtype, device, shape, strides), which inputs and results share memory, symbolic shapes, other annotations, and
configs. They exclude names, the region's id, and which of the values in between share memory: the ops say that, and the
metadata of a recomputed op may not.
"""

from __future__ import annotations

import functools
import operator
import warnings
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.fx

from pytest_regional._base.errors import RegionalError, RegionalRuntimeError, RegionalWarning
from pytest_regional._torch import MissingTorchSymbolError
from pytest_regional._torch.autograd_cache import note_refused_keys, refused_keys
from pytest_regional._torch.config import (
    cache_tagged,
    compile_state,
    random_numbers_are_functional,
    region_compile_settings,
)
from pytest_regional._torch.dynamo import at_dynamo_reset, count_fallback, restart_exceptions
from pytest_regional._torch.fx_graphs import ANNOTATION, attribute, clone_alone, is_graph_module, node_for_number
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
from pytest_regional.reference.effects import COLLECTIVE, RANDOM, effect_classes, element_of, written_arguments
from pytest_regional.reference.extract import ExtractedRegion, nodes_of_symbols
from pytest_regional.reference.options import OnRegionError
from pytest_regional.reference.ordering.carry_over import compile_in_order
from pytest_regional.reference.regions import freeze, op_names, shortened, source_line

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
        index = element.args[1]
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
            expected = node.meta.get("val")
            if not is_fake_tensor(expected) or expected.layout is not torch.strided or not expected.dim():
                continue
            if _is_dense(expected.shape, expected.stride(), _memory_order(expected.shape, expected.stride())):
                users = [user for user in node.users if user.op != "output"]
                following = first if node.op == "placeholder" else node.next
                _restore(node, expected, users, following, is_known=False)


def _has_the_strides_of_its_inputs(node: torch.fx.Node) -> bool:
    """Return whether ``node`` is a view or a pointwise operator, whose fake runs the code of the kernel."""
    if not is_op_overload(node.target):
        return False
    is_pointwise = torch.Tag.pointwise in node.target.tags
    return is_pointwise or returns_a_view(node.target) or hides_a_view(node.target)


def _restore(
    element: torch.fx.Node,
    expected: torch.Tensor,
    users: Iterable[torch.fx.Node],
    following: torch.fx.Node,
    *,
    is_known: bool,
) -> None:
    """Let ``users`` read a copy of ``element`` with the strides of ``expected``, made in front of ``following``."""
    call, aten = element.graph.call_function, torch.ops.aten
    value, shape, strides = element, list(expected.shape), expected.stride()
    with element.graph.inserting_before(following):
        for dim, stride in enumerate(strides):
            if not is_symbolic(stride) and stride == 0:
                value, shape[dim] = call(aten.slice.Tensor, (value, dim, 0, 1)), 1
        order = _memory_order(shape, strides)
        numbers = None
        if not _is_dense(shape, strides, order):
            needed = {str(name) for stride in strides for name in free_symbols(stride)}
            (region,) = element.all_input_nodes
            bearers = nodes_of_symbols(needed, [*region.all_input_nodes, element])
            if not bearers.keys() < needed:  # otherwise no input of the region provides one of the symbols
                numbers = [node_for_number(element.graph, stride, bearers) for stride in strides]
        if numbers is None:
            value = _in_order(value, order, memory_is_known=is_known)
        else:
            value = call(copy_to_strides(), (value, numbers))
        if shape != list(expected.shape):
            value = call(aten.expand_as.default, (value, element))
    # The compiled region ends at the call; nodes after it are not its operators.
    value.meta = {key: entry for key, entry in element.meta.items() if key != "custom"}
    for user in users:
        user.replace_input_with(element, value)


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


Compiled = Callable[..., Sequence[Any]]


def as_graph_target(compiled: Compiled, name: str, *, plain: bool) -> Compiled:
    """Wrap ``compiled`` into a plain function, which FX can print and ``GraphPickler`` can unwrap.

    Args:
        compiled: The compiler's result for the region.
        name: The region's name in the graph.
        plain: The region's ``makes_plain_values``, kept on the function for serialization.
    """
    direct = inductor_callable(compiled) if plain else None
    if direct is None:

        def call(*arguments: Any) -> Sequence[Any]:
            return compiled(*arguments)

    else:
        # On its first call a compiled graph checks custom operators and finishes its autotuning.
        is_first = True
        is_grad_enabled, profiler_runs = torch.is_grad_enabled, profiler_watch()

        def call(*arguments: Any) -> Sequence[Any]:
            nonlocal is_first
            if is_first or profiler_runs() or is_grad_enabled():
                is_first = False
                return compiled(*arguments)
            return direct(list(arguments))

    call.__name__ = call.__qualname__ = name
    call.__wrapped__ = compiled  # type: ignore[attr-defined]
    call.makes_plain_values = plain  # type: ignore[attr-defined]
    return call


def makes_plain_values(region: ExtractedRegion) -> bool:
    """Return whether ``region`` maps distinct plain values to new ones, without writes or effects."""
    inputs = [border.meta.get("val") for border in region.borders]
    results = [node.meta.get("val") for node in region.results]
    if not all(_is_plain(value) or is_integer(value) for value in inputs) or not all(map(_is_plain, results)):
        return False
    tensors = [value for value in inputs if not is_integer(value)]
    if len({id(value) for value in tensors}) < len(tensors) or region.attributes or random_numbers_are_functional():
        return False
    borrowed, made = {storage_key(value) for value in tensors}, {storage_key(value) for value in results}
    if len(made) < len(results) or not borrowed.isdisjoint(made):
        return False
    for node in region.partition.nodes:
        written = {storage_key(argument.meta.get("val")) for argument in written_arguments(node)}
        if written & {None, *borrowed} or effect_classes(node) - {RANDOM}:
            return False
    return True


def _is_plain(value: Any) -> bool:
    """Return whether a value is an ordinary dense tensor without gradients."""
    return is_fake_tensor(value) and value.layout is torch.strided and not value.requires_grad


#: Compiles one region into a callable that takes its inputs and returns a tuple of its outputs.
RegionCompiler = Callable[[ExtractedRegion], Compiled]


def compile_with_inductor(request: ExtractedRegion) -> Compiled:
    """Compile one region through ``torch._inductor.standalone_compile``, with its own configuration patched in."""
    artifact: Compiled = compile_in_order(request.rewritten, functools.partial(_compile_module, request))
    if not isinstance(artifact, aot_compiled_artifact()):
        raise TypeError(
            f"standalone_compile returned {type(artifact).__name__} for {request.name}, not an AOT artifact"
        )
    return artifact


def _compile_module(request: ExtractedRegion, module: torch.fx.GraphModule) -> Compiled:
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
        require_values(region)
        compiled = compiler(region)
        if is_graph_module(compiled):  # not compiled: it runs as a graph
            gm.add_submodule(region.name, compiled)
            continue
        region.call.target = as_graph_target(compiled, region.name, plain=makes_plain_values(region))
        region.call.op = "call_function"
        restore_strides(region.call, compiled_output_strides(compiled, len(region.results)))


def require_values(region: ExtractedRegion) -> None:
    """Raise a ``RegionalRuntimeError`` unless the trace kept a value for each input of ``region``."""
    for border in region.borders:
        if "val" not in border.meta:
            raise RegionalRuntimeError(
                f"input {border.name!r} of {region.name} has no meta['val']: trace the graph with fake tensors, "
                f"or give regional_inductor the example inputs."
            )


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

    def __call__(self, request: ExtractedRegion) -> Compiled:
        """Compile ``request``.

        Raises:
            RegionCompileError: naming region and ops, if that fails and the policy is ``raise``.
        """
        spare: Compiled | None = clone_alone(request.module) if self.on_region_error == "eager" else None
        try:
            return self.compiler(request)
        except Exception as error:
            if isinstance(error, (*restart_exceptions(), MissingTorchSymbolError)):
                raise
            nodes = request.partition.nodes
            line = source_line(nodes)
            where = f", from {line}" if line else ""
            reason = str(error).strip().splitlines() or [""]
            failure = RegionCompileError(
                f"region {request.key.label!r} ({request.name}: {shortened(op_names(nodes))}{where}) did not compile: "
                f"{type(error).__name__}: {reason[0]}"
            )
            if spare is None:
                raise failure from error
            warnings.warn(f"{failure}; it runs eagerly", RegionFallbackWarning, stacklevel=2)
            count_fallback()
            return spare


# Their arguments are indices into a table of this process that Dynamo's reset clears.
_KERNEL_TABLE_OPS = ("triton_kernel_wrapper_mutation", "triton_kernel_wrapper_functional")


@dataclass(frozen=True)
class Fingerprint:
    """Equal tokens mean interchangeable partitions; ``symbolic`` ones only within one shape environment."""

    token: Hashable
    symbolic: bool


def fingerprint(request: ExtractedRegion) -> Fingerprint:
    """Describe ``request`` up to names: configs; inputs, attributes and ops; results; order."""
    description = Description()
    for border in request.borders:
        description.add(border.source, "input", description.value(border.meta.get("val")))
    for source, value in request.attributes.items():
        description.add(source, "attribute", description.constant(value))
    for node in request.partition.nodes:
        description.add_node(node)
    memory = tuple(description.memory(node.meta.get("val")) for node in request.results)
    results, order = (description.arguments(request.results), memory), tuple(sorted(request.positions))
    return Fingerprint((request.key.configs, tuple(description.lines), results, order), description.symbolic)


class Description:
    """A graph as lines of hashable values, with numbers for nodes."""

    def __init__(self) -> None:
        self.lines: list[Hashable] = []
        self.symbolic = False
        self._numbers: dict[torch.fx.Node | None, int] = {}
        self._storages: dict[int, int] = {}

    def add(self, node: torch.fx.Node | None, *line: Hashable) -> None:
        """Append a line, whose number identifies ``node`` from then on."""
        self._numbers[node] = len(self.lines)
        self.lines.append(line)

    def add_node(self, node: torch.fx.Node) -> None:
        """Append the line of an op, with its annotations other than the region."""
        self.symbolic |= getattr(node.target, "__name__", "") in _KERNEL_TABLE_OPS
        custom = (node.meta.get("custom") if node.op == "call_function" else None) or {}
        self.add(
            node,
            node.op,
            node.target,
            self.arguments(node.args),
            self.arguments(node.kwargs),
            self.value(node.meta.get("val"), in_between=True),
            freeze({name: value for name, value in custom.items() if name != ANNOTATION}),
        )

    def constant(self, value: Any) -> Hashable:
        """Describe the value of a ``get_attr``: a body by content, anything else by identity."""
        if not is_graph_module(value):
            return Identity(value)
        body = Description()
        for node in value.graph.nodes:
            if node.op == "get_attr":
                body.add(node, "attribute", body.constant(attribute(value, node.target)))
            elif node.op in ("placeholder", "output"):
                body.add(node, node.op, body.arguments(node.args), body.value(node.meta.get("val")))
            else:
                body.add_node(node)
        self.symbolic |= body.symbolic
        return tuple(body.lines)

    def arguments(self, value: Any) -> Hashable:
        """Describe arguments: nodes by number, symbols by text, others by type and value."""
        return freeze(self._plain(torch.fx.node.map_arg(value, lambda node: Reference(self._numbers[node]))))

    def _plain(self, value: Any) -> Any:
        """Convert FX's immutable containers and slices to types that ``freeze`` compares by content."""
        if isinstance(value, slice):
            return "slice", *map(self._plain, (value.start, value.stop, value.step))
        if isinstance(value, Mapping):
            return {name: self._plain(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return tuple(map(self._plain, value))
        return ("symbol", self._number(value)) if is_symbolic(value) else value

    def value(self, value: Any, *, in_between: bool = False) -> Hashable:
        """Describe the (fake) value of a node; without its memory where it is neither an input nor a result."""
        if isinstance(value, (list, tuple)):
            return tuple(self.value(element, in_between=in_between) for element in value)
        if not isinstance(value, torch.Tensor):
            return type(value).__name__, self._number(value)
        alias = None if in_between else self.memory(value)
        kind = type(value), value.dtype, str(value.device), str(value.layout), value.requires_grad, alias
        return *kind, *self._geometry(value)

    def memory(self, value: Any) -> int | None:
        """Return the number of the storage of a value; None if it has none."""
        storage = storage_key(value)
        return None if storage is None else self._storages.setdefault(storage, len(self._storages))

    def _geometry(self, value: torch.Tensor) -> Iterable[Hashable]:
        yield self._sizes(value.shape)
        if value.layout is torch.strided:
            yield self._sizes(value.stride())
            yield self._number(value.storage_offset())

    def _sizes(self, sizes: Iterable[Any]) -> Hashable:
        return tuple(map(self._number, sizes))

    def _number(self, value: Any) -> Hashable:
        if type(value) is int:
            return value
        self.symbolic |= is_symbolic(value)
        return str(value)


class Reference(int):
    """The number of a node, distinguished from an integer argument by its type."""


class Identity:
    """Equal only to an identity of the same object; keeps its object alive, so that its address stays unique."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value


Memory = dict[Hashable, Compiled]

# Weak, so that a compiled region is freed with the last graph that calls it.
_of_this_process: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()


class SharedCompiler:
    """A region compiler for one graph that returns the same callable for identical partitions.

    Partitions with symbolic shapes are shared through ``memory``, which must belong to one compile (its forward and
    backward graph): different shape environments reuse symbol names. With ``across_modules``, others are shared with
    everything that this process compiled with an equal ``compiler`` and settings since Dynamo's last reset.
    """

    def __init__(self, compiler: RegionCompiler, memory: Memory | None = None, *, across_modules: bool = False) -> None:
        self._compiler = compiler
        self._memory = {} if memory is None else memory
        self._across_modules = across_modules

    def __call__(self, request: ExtractedRegion) -> Compiled:
        """Compile ``request``, or return the result for an identical one."""
        identity = fingerprint(request)
        key = identity.token, self._state
        compiled = self._memory.get(key)
        lasting = self._across_modules and not identity.symbolic
        if compiled is None and lasting:
            compiled = _of_this_process.get(self._lasting(key))
        if compiled is None:
            compiled = self._compiler(request)
            if lasting and not is_graph_module(compiled):
                at_dynamo_reset(clear_caches)
                _of_this_process[self._lasting(key)] = compiled
        self._memory[key] = compiled
        return compiled

    @cached_property
    def _state(self) -> Hashable:
        """The current settings for this graph's compile."""
        return _HashedOnce(freeze(compile_state()))

    def _lasting(self, key: Hashable) -> Hashable:
        """Distinguish a patched ``standalone_compile`` from the real one, so that counting its calls starts at zero."""
        return key, self._compiler, standalone_compile()


def clear_caches() -> None:
    """Clear this process's compiled regions; Dynamo's reset does so too."""
    _of_this_process.clear()


class _HashedOnce:
    """A large hashable value with a cached hash."""

    def __init__(self, value: Hashable) -> None:
        self._value = value
        self._hash = hash(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _HashedOnce) and self._value == other._value
