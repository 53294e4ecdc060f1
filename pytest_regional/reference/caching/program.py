"""Serialization of graphs with compiled regions.

It keeps what runs: ops, arguments, constants, bodies of higher-order ops, and the compiled regions, each once even if
called several times. It omits the metadata of nodes. PyTorch's ``GraphPickler`` keeps that, refuses operators that are
not its own, and writes a shared region again for every call.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from pytest_regional._base.files import write_whole
from pytest_regional._torch.aot_autograd import effect_token_count
from pytest_regional._torch.autograd_cache import is_serializable, why_unserializable
from pytest_regional._torch.caches import CodeFile, code_files, inductor_cache_dir, libraries_at_hand
from pytest_regional._torch.fx_graphs import attribute, is_graph_module, use_boxed_codegen
from pytest_regional._torch.inductor import aot_compiled_artifact, output_code
from pytest_regional._torch.operators import is_higher_order_op, is_op_overload
from pytest_regional._torch.tracing import is_fake_tensor, is_symbolic, without_dispatch_modes
from pytest_regional.reference.caching.container import UnstorableError, dumped
from pytest_regional.reference.compile_regions import Compiled, as_graph_target


@contextlib.contextmanager
def materialized(files: Iterable[CodeFile]) -> Iterator[None]:
    """Provide ``files`` to code loaded inside: original sources, and libraries without the C++ compiler."""
    in_place = {}
    for file in files:
        path = inductor_cache_dir() / file.path
        if not path.is_file() or path.read_bytes() != file.content:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, file.content, mode=0o600)
        in_place[str(path)] = file
    with libraries_at_hand(in_place):
        yield


@dataclass(frozen=True)
class RegionCode:
    """Inductor's result for a region.

    Attributes:
        name: its name in the graph.
        makes_plain_values: whether Inductor's code may be called without AOTAutograd's wrappers.
        artifact: PyTorch's own serialization.
        files: its generated code; a compiled library in it saves a run of the C++ compiler.
    """

    name: str
    makes_plain_values: bool
    artifact: bytes
    files: tuple[CodeFile, ...]

    @staticmethod
    def is_region_call(target: Any) -> bool:
        """Return whether ``target`` is the function that calls a compiled region in a graph."""
        return isinstance(getattr(target, "__wrapped__", None), aot_compiled_artifact())

    @classmethod
    def of(cls, target: Any) -> RegionCode:
        """Describe the region that ``target`` calls.

        Raises:
            UnstorableError: PyTorch's result cannot be stored.
        """
        artifact = target.__wrapped__
        if not is_serializable(artifact):
            why = why_unserializable(artifact) or "PyTorch's caches were off while it was compiled"
            raise UnstorableError(f"region {target.__name__} has no result that can be stored: {why}")
        # PyTorch's own pass wraps compiled regions too, but without this attribute.
        plain = getattr(target, "makes_plain_values", False)
        return cls(target.__name__, plain, artifact.serialize(), code_files(artifact))

    def load(self) -> Compiled:
        """Return the function that calls the region in a graph."""
        with materialized(self.files):
            artifact: Callable[..., Any] = aot_compiled_artifact().deserialize(self.artifact)  # type: ignore[attr-defined]
        return as_graph_target(artifact, self.name, plain=self.makes_plain_values)


# Their arguments are indices into a table of this process.
_KERNEL_TABLE_OPS = ("triton_kernel_wrapper_mutation", "triton_kernel_wrapper_functional")


def dump_program(gm: torch.fx.GraphModule) -> bytes:
    """Serialize ``gm`` with its compiled regions.

    Raises:
        UnstorableError: naming the part that cannot be stored.
    """
    regions: dict[int, Callable[..., Any]] = {}

    def dump(value: Any) -> bytes:
        stream = io.BytesIO()
        pickler = _Pickler(stream)
        pickler.dump(value)
        regions.update(pickler.regions)
        return stream.getvalue()

    described = _describe(gm)
    # AOTAutograd saves in its fake mode. There, torch 2.11 refuses to pickle a tensor that is on a GPU, or crashes.
    with without_dispatch_modes():
        program = dumped(described, described.parts(), dump)
    return pickle.dumps((program, [RegionCode.of(target) for target in regions.values()]))


def load_program(data: bytes) -> torch.fx.GraphModule:
    """Load the graph in ``data``, ready to be called with one list of inputs."""
    program, regions = pickle.loads(data)
    gm = _rebuild(_Unpickler(io.BytesIO(program), [code.load() for code in regions]).load())
    use_boxed_codegen(gm)
    return gm


class _NodeName(str):
    """A node among the arguments of others."""

    __slots__ = ()


@dataclass
class _Nodes:
    """A graph as plain data."""

    class_name: str
    nodes: list[tuple[str, Any, Any, Any, str]] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)

    def parts(self) -> Iterator[tuple[str, Any]]:
        """Yield all parts that may not be picklable, each with a name: constants and bodies, then nodes."""
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
            if obj.__name__ in _KERNEL_TABLE_OPS:
                raise UnstorableError(f"{obj.__name__} outside a region calls a kernel by its index in this process")
            return _higher_order_operator, (type(obj).__module__, obj.__name__)
        if is_symbolic(obj) or is_fake_tensor(obj):
            raise UnstorableError(f"a {type(obj).__name__} of this trace, {obj}, is a constant of the graph")
        return NotImplemented


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


class CompiledGraph(output_code()):  # type: ignore[misc]
    """A graph that takes one list of inputs; serialized between ``prepare_for_serialization`` and ``post_compile``."""

    def __init__(self, graph_module: torch.fx.GraphModule) -> None:
        super().__init__()
        self._graph_module: torch.fx.GraphModule | None = graph_module
        self._program = b""
        self._takes_tokens = effect_token_count() > 0
        self._boxed_call = True

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """Run the graph, which clears ``inputs``."""
        return self._graph_module(inputs)  # type: ignore[misc]

    def prepare_for_serialization(self) -> None:
        """Serialize the graph (on the copy of this object that is stored).

        Raises:
            UnstorableError: it holds something that cannot be stored.
        """
        if self._takes_tokens:
            raise UnstorableError("AOTAutograd passes no effect tokens (of a print, of linalg.inv) to what it loads")
        if self._graph_module is not None:
            self._program = dump_program(self._graph_module)
            self._graph_module = None

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """Load the graph if this object was stored."""
        if self._graph_module is None:
            self._graph_module = load_program(self._program)
            self._program = b""

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """Ignore the bundle: regions bring their own kernels."""
