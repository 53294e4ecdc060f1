"""Graphs whose regions are compiled, as bytes and back.

Kept is what runs: ops, arguments, constants, bodies of higher-order ops, and the compiled regions, each once however
often it is called. Metadata of nodes is not. PyTorch's ``GraphPickler`` keeps it, refuses operators that are not its
own, and writes a shared region anew for every call.
"""

from __future__ import annotations

import importlib
import io
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from pytest_regional._torch.region_compile import (
    is_fake_tensor,
    is_graph_module,
    is_higher_order_op,
    is_op_overload,
    is_symbolic,
    use_boxed_codegen,
)
from pytest_regional.reference.caching.pickling import UnsavableGraphError, dumped
from pytest_regional.reference.caching.region_code import RegionCode
from pytest_regional.reference.extract import attribute

# Their arguments are numbers in a table of this process.
_KERNEL_TABLE_OPS = ("triton_kernel_wrapper_mutation", "triton_kernel_wrapper_functional")


def dump_program(gm: torch.fx.GraphModule) -> bytes:
    """Return ``gm``, with its compiled regions, as bytes.

    Raises:
        UnsavableGraphError: naming what in it cannot be stored.
    """
    regions: dict[int, Callable[..., Any]] = {}

    def dump(value: Any) -> bytes:
        stream = io.BytesIO()
        pickler = _Pickler(stream)
        pickler.dump(value)
        regions.update(pickler.regions)
        return stream.getvalue()

    described = _describe(gm)
    program = dumped(described, described.parts(), dump)
    return pickle.dumps((program, [RegionCode.of(target) for target in regions.values()]))


def load_program(data: bytes) -> torch.fx.GraphModule:
    """Return the graph that ``data`` was made of, ready to be called with one list of inputs."""
    program, regions = pickle.loads(data)
    gm = _rebuild(_Unpickler(io.BytesIO(program), [code.load() for code in regions]).load())
    use_boxed_codegen(gm)
    return gm


class _NodeName(str):
    """Stands for a node among the arguments of others."""

    __slots__ = ()


@dataclass
class _Nodes:
    """A graph as plain data."""

    class_name: str
    nodes: list[tuple[str, Any, Any, Any, str]] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)

    def parts(self) -> Iterator[tuple[str, Any]]:
        """Yield what can be pickled or not, each with a name: constants and bodies, then nodes."""
        for path, value in self.attributes.items():
            if is_graph_module(value):
                yield from ((f"{path}: {name}", part) for name, part in _describe(value).parts())
            else:
                yield f"attribute {path} of the graph", value
        for op, target, args, kwargs, name in self.nodes:
            yield f"node {name} ({op} of {target})", (target, args, kwargs)


def _describe(gm: torch.fx.GraphModule) -> _Nodes:
    described = _Nodes(type(gm).__name__)
    for node in gm.graph.nodes:
        described.nodes.append((node.op, node.target, node.args, node.kwargs, node.name))
        if node.op in ("get_attr", "call_module"):
            described.attributes[str(node.target)] = attribute(gm, str(node.target))
    return described


def _rebuild(described: _Nodes) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    nodes: dict[str, torch.fx.Node] = {}

    def node_for(value: Any) -> Any:
        return nodes[value] if isinstance(value, _NodeName) else value

    for op, target, args, kwargs, name in described.nodes:
        if op == "output":
            graph.output(torch.fx.node.map_aggregate(args[0], node_for))
            continue
        mapped = torch.fx.node.map_aggregate(args, node_for), torch.fx.node.map_aggregate(kwargs, node_for)
        nodes[name] = graph.create_node(op, target, *mapped, name=name)
    return torch.fx.GraphModule(_nested(described.attributes), graph, described.class_name)


def _nested(attributes: Mapping[str, Any]) -> torch.nn.Module:
    """Return a module with ``attributes`` at their dotted paths."""
    root = torch.nn.Module()
    for path, value in attributes.items():
        *owners, name = path.split(".")
        owner = root
        for part in owners:
            if not hasattr(owner, part):
                setattr(owner, part, torch.nn.Module())
            owner = getattr(owner, part)
        setattr(owner, name, value)
    return root


class _Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        self.regions: dict[int, Callable[..., Any]] = {}
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> Any:
        """Nodes by name, compiled regions by number."""
        if isinstance(obj, torch.fx.Node):
            return "node", obj.name
        if RegionCode.is_region_call(obj):
            artifact = id(obj.__wrapped__)
            self.regions.setdefault(artifact, obj)
            return "region", self._numbers.setdefault(artifact, len(self._numbers))
        return None

    def reducer_override(self, obj: Any) -> Any:
        """Operators by name, graphs by content."""
        if is_graph_module(obj):
            return _rebuild, (_describe(obj),)
        if is_op_overload(obj):
            return _operator, (obj.name(),)
        if is_higher_order_op(obj):
            return self._higher_order(obj)
        if is_symbolic(obj) or is_fake_tensor(obj):
            raise UnsavableGraphError(f"a {type(obj).__name__} of this trace, {obj}, is a constant of the graph")
        return NotImplemented

    def _higher_order(self, op: Any) -> Any:
        if op.__name__ in _KERNEL_TABLE_OPS:
            raise UnsavableGraphError(f"{op.__name__} outside a region calls a kernel of this process by number")
        return _higher_order_operator, (type(op).__module__, op.__name__)


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, regions: list[Callable[..., Any]]) -> None:
        super().__init__(stream)
        self._regions = regions

    def persistent_load(self, identity: Any) -> Any:
        kind, value = identity
        return _NodeName(value) if kind == "node" else self._regions[value]


def _operator(name: str) -> Any:
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


def _higher_order_operator(module: str, name: str) -> Any:
    importlib.import_module(module)  # registers the operator
    return getattr(torch.ops.higher_order, name)
