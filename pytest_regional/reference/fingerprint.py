"""Fingerprints of partitions: equal up to names means interchangeable.

They include ops, arguments, the metadata of every value (dtype, device, shape, strides), which inputs and results share
memory, symbolic shapes, other annotations, and configs. They exclude names, the region's id, and which of the values in
between share memory: the ops say that, and the metadata of a recomputed op may not.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.fx

from pytest_regional._torch.config import compile_state
from pytest_regional._torch.dynamo import at_dynamo_reset
from pytest_regional._torch.fx_graphs import ANNOTATION, attribute, is_graph_module
from pytest_regional._torch.inductor import standalone_compile
from pytest_regional._torch.tracing import is_symbolic, storage_key
from pytest_regional.reference.compile_regions import Compiled, RegionCompiler, RegionRequest
from pytest_regional.reference.regions import freeze

# Their arguments are indices into a table of this process that Dynamo's reset clears.
_KERNEL_TABLE_OPS = ("triton_kernel_wrapper_mutation", "triton_kernel_wrapper_functional")


@dataclass(frozen=True)
class Fingerprint:
    """Equal tokens mean interchangeable partitions; ``symbolic`` ones only within one shape environment."""

    token: Hashable
    symbolic: bool


def fingerprint(request: RegionRequest) -> Fingerprint:
    """Describe ``request`` up to names."""
    description = Description()
    return Fingerprint((request.key.configs, *description.add_region(request)), description.symbolic)


class Description:
    """A graph as lines of hashable values, with numbers for nodes."""

    def __init__(self) -> None:
        self.lines: list[Hashable] = []
        self.symbolic = False
        self._numbers: dict[torch.fx.Node | None, int] = {}
        self._storages: dict[int, int] = {}

    def add_region(self, request: RegionRequest) -> tuple[tuple[Hashable, ...], Hashable, Hashable]:
        """Append the lines of a partition: inputs, attributes, ops; return all lines, the results, and the order."""
        region = request.region
        for border in region.inputs:
            self.add(border.source, "input", self.value(border.meta.get("val")))
        for source, value in region.attributes.items():
            self.add(source, "attribute", self.constant(value))
        for node in region.partition.nodes:
            self.add_node(node)
        memory = tuple(self.memory(node.meta.get("val")) for node in region.results)
        return tuple(self.lines), (self.arguments(region.results), memory), tuple(sorted(region.order))

    def add(self, node: torch.fx.Node | None, *line: Hashable) -> None:
        """Append a line, whose number identifies ``node`` from then on."""
        self._numbers[node] = len(self.lines)
        self.lines.append(line)

    def add_node(self, node: torch.fx.Node) -> None:
        """Append the line of an op."""
        target: Hashable = node.target
        self.symbolic |= getattr(target, "__name__", "") in _KERNEL_TABLE_OPS
        value = self.value(node.meta.get("val"), in_between=True)
        arguments = self.arguments(node.args), self.arguments(node.kwargs)
        self.add(node, node.op, target, *arguments, value, _other_annotations(node))

    def add_graph(self, module: torch.fx.GraphModule) -> None:
        """Append all lines of a higher-order op's body."""
        for node in module.graph.nodes:
            if node.op == "get_attr":
                self.add(node, "attribute", self.constant(attribute(module, str(node.target))))
            elif node.op in ("placeholder", "output"):
                self.add(node, node.op, self.arguments(node.args), self.value(node.meta.get("val")))
            else:
                self.add_node(node)

    def constant(self, value: Any) -> Hashable:
        """Describe the value of a ``get_attr``: a body by content, anything else by identity."""
        if not is_graph_module(value):
            return Identity(value)
        body = Description()
        body.add_graph(value)
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


def _other_annotations(node: torch.fx.Node) -> Hashable:
    custom = node.meta.get("custom") if node.op == "call_function" else None
    return freeze({name: value for name, value in (custom or {}).items() if name != ANNOTATION})


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
        self.shared: list[str] = []

    def __call__(self, request: RegionRequest) -> Compiled:
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
        else:
            self.shared.append(request.name)
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
