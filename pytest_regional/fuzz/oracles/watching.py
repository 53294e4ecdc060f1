"""What a backend did with a program: the graphs it got, the partitions it handed to Inductor, what became of both."""

from __future__ import annotations

import contextlib
import functools
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch.fx import GraphModule

from pytest_regional._torch import config, fx_graphs, inductor
from pytest_regional._torch.fx_graphs import is_gradient_sum
from pytest_regional._torch.operators import hides_a_view, is_higher_order_op, is_op_overload, schema_of
from pytest_regional._torch.tracing import storage_key
from pytest_regional.harness.observe import annotated
from pytest_regional.harness.observe.annotated import RegionId
from pytest_regional.harness.observe.listeners import CompileListener
from pytest_regional.harness.regional import Regional


@dataclass(frozen=True)
class NodeInfo:
    """One node of a graph.

    Attributes:
        name: in its graph.
        operator: such as ``aten.mul.Tensor``; None for plumbing, and for what reads or computes sizes.
        region: what it is annotated with.
        inputs: names of the nodes that it reads.
        effect: whether more than values orders it: it draws random numbers, writes, or is not ATen's own.
        sums_gradients: whether autograd put it between two gradient functions: it is no op's gradient.
        view: whether it computes nothing: its results are views of its argument, by its schema.
    """

    name: str
    operator: str | None
    region: RegionId | None
    inputs: tuple[str, ...]
    effect: bool
    sums_gradients: bool = False
    view: bool = False


@dataclass
class WatchedPartition:
    """A subgraph that was handed to Inductor.

    Attributes:
        nodes: what is in it.
        asked: what the annotations of its nodes ask of Inductor, in order of first appearance.
        seen: the Inductor settings that held, of those that any annotation of the program names.
        shape: what makes two partitions equal, whatever their nodes are called; None where that is hard to say.
        hides_memory: whether a higher-order operator is in it. Its body may return its input, as one that is trained
            returns what its backward reads; the fake results do not say so.
        results: names of the nodes whose values it returns, in order; "" for what is no node.
        artifact: identity of what Inductor returned; None while it failed.
    """

    nodes: tuple[NodeInfo, ...]
    asked: tuple[dict[str, Any], ...]
    seen: dict[str, Any]
    shape: str | None
    hides_memory: bool = False
    results: tuple[str, ...] = ()
    artifact: int | None = None

    @property
    def operators(self) -> tuple[str, ...]:
        """Its operators, in order."""
        return tuple(node.operator for node in self.nodes if node.operator)

    @property
    def regions(self) -> tuple[RegionId, ...]:
        """The regions of its nodes, in order of first appearance."""
        return tuple(dict.fromkeys(node.region for node in self.nodes if node.region))


@dataclass
class WatchedGraph:
    """A graph that the backend's compilers got.

    Attributes:
        kind: ``"inference"``, ``"forward"`` or ``"backward"``.
        nodes: its nodes and those of its sub-graphs, as they were before the backend saw them.
        settings: the Inductor settings that held outside of regions.
        partitions: what of it was handed to Inductor, in order.
        calls: for each call of a compiled region in the result: identity of the artifact.
        called: for each of them: name of the region that the call is annotated with, or None.
        configs: for each of them: what that annotation asks of Inductor, or None.
        eager: operators in the result that are annotated, compute, and are no compiled call.
        eager_views: operators in the result that are annotated, compute nothing, and are no compiled call.
        outside: operators in the result that are not annotated.
        shows: whether the backend returned a graph module, so that ``calls`` and ``eager`` say something.
        nested: whether it has sub-graphs, whose nodes are among ``nodes``.
    """

    kind: str
    nodes: tuple[NodeInfo, ...]
    settings: dict[str, Any]
    partitions: list[WatchedPartition] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    called: list[str | None] = field(default_factory=list)
    configs: list[dict[str, Any] | None] = field(default_factory=list)
    eager: list[str] = field(default_factory=list)
    eager_views: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    shows: bool = False
    nested: bool = False

    @property
    def regions(self) -> tuple[RegionId, ...]:
        """The regions of its operators, in order of first appearance."""
        return tuple(dict.fromkeys(node.region for node in self.nodes if node.region and node.operator))

    def base_of(self, name: str) -> str:
        """Return the name of the node whose value the node called ``name`` is a view of; its own if it is no view."""
        nodes = {node.name: node for node in self.nodes}
        while name in nodes and nodes[name].view and nodes[name].inputs:
            name = nodes[name].inputs[0]
        return name


class BoundaryChecker:
    """Checks that what enters and leaves compiled regions is what the graph was traced with, whenever it runs.

    The outer graph was traced with fake values: their dtypes, shapes, strides and storages are what eager operators
    around a region, and the region's own code, rely on. The compiled graph is run node by node, and every value that
    enters a region, or that anybody else reads and a region made, is held against the fake value that stands for it.

    Nodes that the backend added carry no fake value; what they read is not checked, so a backend may restore strides
    behind a region. What they make of it, which stands for the region's value from there on, is checked in its place.
    Memory shared by values whose fake values share none is a fault, unless the body of a higher-order operator hides
    it, or the graph makes both of one value by views. Memory no longer shared is one only between a region's input and
    its output, which the graph says is a view of it.

    Args:
        kind: of the graph, for messages.
        found: where messages go, each once.
        may_share: returns for a region's artifact, the position of a result, and that of another, or None for an input,
            whether they may share memory although their fake values do not.
        interpreted: whether regions run as eager operators.
    """

    def __init__(
        self, kind: str, found: list[str], may_share: Callable[[Any, int, int | None], bool], *, interpreted: bool
    ) -> None:
        self._kind, self._found, self._may_share, self._interpreted = kind, found, may_share, interpreted

    def watch(self, gm: GraphModule) -> None:
        """Have calls of ``gm`` checked."""
        boxed = fx_graphs.takes_one_list(gm)

        def forward(original: Any, inputs: tuple[Any, ...]) -> Any:
            given = list(inputs[0]) if boxed else list(inputs)
            if boxed:
                inputs[0].clear()
            return fx_graphs.run_checked(gm, given, self._check)

        fx_graphs.replace_forward(gm, forward)

    def _check(self, node: torch.fx.Node, given: tuple[Any, ...], result: Any) -> None:
        if inductor.artifact_behind(node.target) is not None:
            self._check_call(node, given, result)
        elif "val" in node.meta or node.op == "output":
            for argument, value in zip(node.all_input_nodes, given, strict=True):
                if inductor.artifact_behind(_made_by(argument).target) is not None:
                    self._compare(argument, value, "leaves", _made_by(argument))

    def _check_call(self, node: torch.fx.Node, given: tuple[Any, ...], result: Any) -> None:
        for argument, value in zip(node.all_input_nodes, given, strict=True):
            self._compare(argument, value, "enters", node)
        results = list(result) if isinstance(result, list | tuple) else [result]
        expected = {user.args[1]: user for user in node.users if user.target is operator.getitem}
        leaving = {index: (user, results[index]) for index, user in expected.items() if index < len(results)}
        self._compare_memory(node, list(zip(node.all_input_nodes, given, strict=True)), leaving)

    def _compare(self, source: torch.fx.Node, value: Any, how: str, region: torch.fx.Node) -> None:
        wrong = difference(source.meta.get("val"), value, offset=how == "leaves" and not self._interpreted)
        if wrong:
            self._note(f"a value {how} {_region_name(region)} of the {self._kind} graph with {wrong}")

    def _compare_memory(
        self,
        region: torch.fx.Node,
        entering: list[tuple[torch.fx.Node, Any]],
        leaving: dict[int, tuple[torch.fx.Node, Any]],
    ) -> None:
        artifact = inductor.artifact_behind(region.target)
        output = f"an output of {_region_name(region)} of the {self._kind} graph"
        known: list[tuple[int | None, torch.fx.Node, Any]] = [(None, *one) for one in entering]
        for index, (node, value) in leaving.items():
            for other, of, held in known:
                said, is_so = _share(node.meta.get("val"), of.meta.get("val")), _share(value, held)
                if said is None or is_so is None or said == is_so:
                    continue
                what = "an input" if other is None else "another output"
                if is_so and not self._may_share(artifact, index, other):
                    self._note(f"{output} shares memory with {what}")
                # One that is computed again has the fake value of a twin, whose memory it does not share.
                elif not is_so and other is None and node.meta.get("recompute") is None:
                    self._note(f"{output} is no view of {what} now")
            known.append((index, node, value))

    def _note(self, message: str) -> None:
        if message not in self._found:
            self._found.append(message)


def _region_name(region: torch.fx.Node) -> str:
    found = annotated.region_of(region)
    return f"region {found[0]!r}" if found else "a region"


def _made_by(node: torch.fx.Node) -> torch.fx.Node:
    """Return what computed ``node``, through everything that only restores its strides."""
    while node.op == "call_function" and (node.target is operator.getitem or _restores(node)):
        node = node.all_input_nodes[0]
    return node


def _restores(node: torch.fx.Node) -> bool:
    """Return whether the backend added ``node`` behind a region: without a fake value, or with that of its input."""
    if inductor.artifact_behind(node.target) is not None or not node.all_input_nodes:
        return False
    value, source = node.meta.get("val"), node.all_input_nodes[0].meta.get("val")
    return value is None or source is None or value is source


def difference(expected: Any, value: Any, *, offset: bool = True) -> str:
    """Return in what ``value`` differs from the fake value that stands for it; empty where it does not.

    Args:
        expected: the fake value.
        value: the real one.
        offset: whether a storage offset counts that is aligned in the one only. Some eager operators, such as
            ``select_scatter``, keep their input's offset and their fake counterparts do not.
    """
    if not isinstance(expected, torch.Tensor) or not isinstance(value, torch.Tensor):
        return ""
    if expected.dtype != value.dtype:
        return f"dtype {value.dtype}, not {expected.dtype}"
    sizes = [(said, size) for said, size in zip(expected.shape, value.shape, strict=False) if type(said) is int]
    if expected.dim() != value.dim() or any(said != size for said, size in sizes):
        return f"shape {tuple(value.shape)}, not {tuple(expected.shape)}"
    if value.layout != torch.strided or expected.layout != torch.strided:
        return ""
    strides = zip(value.shape, expected.stride(), value.stride(), strict=True)
    if value.numel() and any(size > 1 and type(said) is int and said != found for size, said, found in strides):
        return f"strides {value.stride()}, not {tuple(expected.stride())}"
    said, found = expected.storage_offset(), value.storage_offset()
    size = value.element_size()
    if offset and type(said) is int and said * size % _ALIGNMENT == 0 and found * size % _ALIGNMENT:
        return f"storage offset {found}, not {said}"
    return ""


#: Bytes that vectors of generated code are aligned to.
_ALIGNMENT = 16


def _share(one: Any, other: Any) -> bool | None:
    """Return whether two tensors share memory; None where that cannot be told."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return None
    if one.layout != torch.strided or other.layout != torch.strided or not one.numel() or not other.numel():
        return None
    return storage_key(one) == storage_key(other)


class Watched(CompileListener):
    """Everything seen while :func:`watching`.

    Attributes:
        graphs: in the order in which their compiles began.
        boundary_errors: what is wrong with values at boundaries, as far as they were checked.
        artifacts: partitions by the identity of what Inductor made of them.
        settings_before: Inductor's settings before, and ``settings_after`` those afterwards; none where none are noted.
    """

    def __init__(self, settings: Sequence[str], *, checks_boundary: bool, interpreted: bool) -> None:
        self.graphs: list[WatchedGraph] = []
        self.boundary_errors: list[str] = []
        self.artifacts: dict[int, WatchedPartition] = {}
        self.settings_before: dict[str, Any] = {}
        self.settings_after: dict[str, Any] = {}
        self._kept: list[Any] = []
        self._settings = settings
        self._checks_boundary, self._interpreted = checks_boundary, interpreted
        self._current = threading.local()

    @contextlib.contextmanager
    def compiling_graph(self, kind: str, gm: Any) -> Iterator[Callable[[Any], None]]:
        """Note a graph, and what its compile returns."""
        settings = config.inductor_settings_now(self._settings)
        graphs = list(graphs_of(gm))
        nodes = tuple(node_info(node) for inner in graphs for node in inner.nodes)
        graph = WatchedGraph(kind, nodes, settings, nested=len(graphs) > 1)
        self.graphs.append(graph)
        self._current.graph = graph
        yield lambda result: self._finish(graph, result)

    @contextlib.contextmanager
    def compiling_region(self, gm: Any, inputs: Sequence[Any]) -> Iterator[Callable[[Any], None]]:
        """Note a partition, and what Inductor makes of it."""
        nodes = list(gm.graph.nodes)
        regions = ((node, annotated.region_of(node)) for node in nodes)
        asked = {repr(region): annotated.configs_of(node) for node, region in regions if region is not None}
        results = gm.graph.output_node().args[0]
        partition = WatchedPartition(
            tuple(map(node_info, nodes)),
            tuple(asked.values()),
            config.inductor_settings_now(self._settings),
            shape_of(gm, inputs),
            any(is_higher_order_op(node.target) for node in nodes),
            tuple(getattr(one, "name", "") for one in (results if isinstance(results, list | tuple) else [results])),
        )
        graph = getattr(self._current, "graph", None)
        if graph is not None:
            graph.partitions.append(partition)

        def compiled(artifact: Any) -> None:
            partition.artifact = id(artifact)
            self.artifacts[id(artifact)] = partition
            self._kept.append(artifact)  # an identity is one only while the object lives

        yield compiled

    def _finish(self, graph: WatchedGraph, result: Any) -> None:
        gm = fx_graphs.graph_module_in(result)
        if not isinstance(gm, GraphModule):
            return
        graph.shows = True
        for node in (node for inner in graphs_of(gm) for node in inner.nodes):
            artifact = inductor.artifact_behind(node.target)
            if artifact is not None:
                graph.calls.append(id(artifact))
                region = annotated.region_of(node)
                graph.called.append(region[0] if region else None)
                graph.configs.append(annotated.configs_of(node) if region else None)
                self._kept.append(artifact)
            elif node.op == "call_function" and (name := _operator_of(node)):
                inside = graph.eager_views if _is_view(node) else graph.eager
                kind = inside if annotated.region_of(node) else graph.outside
                kind.append(name)
        if self._checks_boundary and graph.calls:
            may_share = functools.partial(self._may_share, graph)
            BoundaryChecker(graph.kind, self.boundary_errors, may_share, interpreted=self._interpreted).watch(gm)

    def _may_share(self, graph: WatchedGraph, artifact: Any, result: int, other: int | None) -> bool:
        """Return whether a result of a region may have the memory of another, or of an input, unlike the fake values.

        A higher-order operator's body hides it, or the graph, as the backend got it, makes views of both of one value:
        a partitioner that merges two equal operators leaves a view of the second with that one's fake memory.
        """
        partition = self.artifacts.get(id(artifact))
        if partition is None:
            return False
        if partition.hides_memory or other is None:
            return partition.hides_memory
        names = {partition.results[position] for position in (result, other) if position < len(partition.results)}
        return len(names) == 2 and len(set(map(graph.base_of, names))) == 1


def graphs_of(gm: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Yield the graph of ``gm`` and those of bodies of operators that are in no region: the others belong to it."""
    seen = set() if seen is None else seen
    seen.add(id(gm))
    yield gm.graph
    for node in gm.graph.nodes:
        users = [user for user in node.users if annotated.region_of(user) is None]
        body = attrgetter(str(node.target))(gm) if node.op == "get_attr" and users else None
        if isinstance(body, GraphModule) and id(body) not in seen:
            yield from graphs_of(body, seen)


def node_info(node: Any) -> NodeInfo:
    """Look at ``node``."""
    return NodeInfo(
        node.name,
        _operator_of(node) if node.op != "get_attr" else None,
        annotated.region_of(node),
        tuple(argument.name for argument in node.all_input_nodes),
        _has_effect(node),
        is_gradient_sum(node),
        _is_view(node),
    )


def _operator_of(node: Any) -> str | None:
    """Return a node's operator; None for plumbing and for sizes, which a backend reads and computes where it likes."""
    # A number out of numbers, or of a tensor's sizes and not of its elements.
    if is_op_overload(node.target):
        of_sizes = schema_of(node.target).name.startswith("aten::sym_")
    else:
        of_sizes = isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool))
    return None if node.op == "call_function" and of_sizes else annotated.operator_of(node)


def _is_view(node: Any) -> bool:
    if node.op != "call_function" or not is_op_overload(node.target):
        return False
    aliases = [value.alias_info for value in schema_of(node.target).returns]
    by_schema = bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)
    return by_schema or hides_a_view(node.target)


def _has_effect(node: Any) -> bool:
    if node.op != "call_function" or not is_op_overload(node.target):
        return node.op == "call_function" and annotated.operator_of(node) is not None
    tags = getattr(node.target, "tags", ())
    return (
        node.target.namespace not in ("aten", "prims")
        or schema_of(node.target).is_mutable
        or (torch.Tag.nondeterministic_seeded in tags)
    )


def shape_of(gm: Any, inputs: Sequence[Any]) -> str | None:
    """Return operators, arguments, annotations of others, and inputs of a subgraph as text, without names.

    None for what text cannot tell.
    """
    numbers: dict[Any, str] = {}
    lines = []
    for node in gm.graph.nodes:
        numbers[node] = f"%{len(numbers)}"
        if node.op in ("get_attr", "call_module") or annotated.configs_of(node):
            return None
        arguments = torch.fx.node.map_arg((node.args, node.kwargs), lambda used: _Named(numbers[used]))
        others = annotated.other_annotations_of(node)
        lines.append(f"{node.op} {node.target if node.op == 'call_function' else ''} {arguments} {others or ''}")
    memory: dict[Any, int] = {}
    described = [_described(value, memory) for value in inputs]
    return None if None in described else "\n".join([*lines, *map(str, described)])


class _Named(str):
    """Prints as what it is called."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _described(value: Any, memory: dict[Any, int]) -> str | None:
    """Return what is known of an input, and the number that ``memory`` gives to its storage; None for no tensor."""
    if not isinstance(value, torch.Tensor):
        return None
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    if not all(type(number) is int for number in numbers):
        return None
    storage = memory.setdefault(storage_key(value), len(memory))
    where = f"{value.storage_offset()} of storage {storage} on {value.device}"
    return f"{value.dtype} {tuple(value.shape)} {value.stride()} at {where} {value.requires_grad}"


@contextlib.contextmanager
def watching(
    regional: Regional, *, checks_boundary: bool = False, settings: Sequence[str] = (), interpreted: bool = False
) -> Iterator[Watched]:
    """See what the backend under test does while the context lasts.

    Args:
        regional: the harness.
        checks_boundary: also compare values at boundaries with what the graph says, whenever a compiled graph runs.
        settings: Inductor settings to note.
        interpreted: whether regions run as eager operators, in the mode ``interpret``.
    """
    watched = Watched(settings, checks_boundary=checks_boundary, interpreted=interpreted)
    watched.settings_before = config.config_values(config.INDUCTOR) if settings else {}
    regional.observer.listeners.append(watched)
    try:
        yield watched
    finally:
        regional.observer.listeners.remove(watched)
    watched.settings_after = config.config_values(config.INDUCTOR) if settings else {}
