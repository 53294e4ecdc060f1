"""Order edges in a graph: ``add_control_deps``, ``remove_control_deps``, the operator, and a legal order of nodes."""

from __future__ import annotations

import contextlib
import graphlib
import heapq
import itertools
import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.fx

from pytest_regional._base.errors import RegionalError
from pytest_regional._torch.fx_graphs import attribute, is_graph_module, lazy_graph_module
from pytest_regional._torch.operators import control_deps, is_op_overload, op_name, returns_nothing
from pytest_regional.reference.effects import (
    RANDOM,
    Barrier,
    Edge,
    effect_classes,
    element_of,
    order_edges,
    written_arguments,
)

_ADDED_FOR_ORDER = "element_for_order"
# They always have a buffer, whose strides Inductor may choose.
_NEVER_INLINED = ("convolution",)


def as_dependency_target(node: torch.fx.Node) -> torch.fx.Node:
    """Return a node to wait for instead of ``node``, prepared as a dependency."""
    value, target = node.meta.get("val"), node.target
    if isinstance(value, (tuple, list)):
        return _element(node, value)
    candidates = [*operands_of(node), *node.graph.find_nodes(op="placeholder")] if returns_nothing(target) else []
    earlier = next((other for other in candidates if isinstance(other.meta.get("val"), torch.Tensor)), None)
    may_be_inlined = is_op_overload(target) and op_name(target) not in _NEVER_INLINED and not is_control_deps(node)
    if earlier is not None:
        wait_for(node, [earlier])
    elif isinstance(value, torch.Tensor) and may_be_inlined:
        node.meta.setdefault(REALIZED, FOR_ORDER)
    return node


def undo_dependency_targets(graph: torch.fx.Graph) -> None:
    """Undo ``as_dependency_target`` in ``graph``."""
    for node in reversed(graph.nodes):
        if node.meta.get(REALIZED) == FOR_ORDER:
            del node.meta[REALIZED]
        if _ADDED_FOR_ORDER in node.meta and not node.users:
            graph.erase_node(node)


def _element(node: torch.fx.Node, values: tuple[object, ...] | list[object]) -> torch.fx.Node:
    number = next((i for i, value in enumerate(values) if isinstance(value, torch.Tensor)), None)
    if number is None:
        return node
    for user in node.users:
        if user.target is operator.getitem and user.args[1] == number and user.prev is node:
            return user
    with node.graph.inserting_after(node):
        element = node.graph.call_function(operator.getitem, (node, number))
    element.meta = {"val": values[number], _ADDED_FOR_ORDER: True}
    return element


class Ancestors:
    """The nodes that run before each node of ``graph``, restricted to ``waited_for``."""

    def __init__(self, graph: torch.fx.Graph, waited_for: Iterable[torch.fx.Node]) -> None:
        self._bits = {node: 1 << i for i, node in enumerate(dict.fromkeys(waited_for))}
        self._alive = _computed(graph)
        self._known: dict[torch.fx.Node, int] = {}

    def needed(
        self, node: torch.fx.Node, requested: Sequence[torch.fx.Node], position: Mapping[torch.fx.Node, int]
    ) -> list[torch.fx.Node]:
        """Record ``node`` as the next one, and return those of ``requested`` that nothing else puts before it."""

        def gained_by(source: torch.fx.Node, *, by_order: bool) -> int:
            # An unused node may be removed, with its own dependencies: waiting for it gains nothing but itself.
            earlier = 0 if by_order and source not in self._alive else self._known.get(source, 0)
            return earlier | self._bits.get(source, 0)

        known = 0
        for source in operands_of(node):
            known |= gained_by(source, by_order=False)
        for source in dependencies_of(node):
            known |= gained_by(source, by_order=True)
        needed = []
        for dependency in sorted(requested, key=position.__getitem__, reverse=True):
            if not self._bits[dependency] & known:
                needed.append(dependency)
                known |= gained_by(dependency, by_order=True)
        self._known[node] = known
        return needed[::-1]


def _computed(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Return the nodes whose value an output or an effect needs."""
    alive: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in alive or written_arguments(node) or effect_classes(node) - {RANDOM}:
            alive.add(node)
            alive.update(operands_of(node))
    return alive


@dataclass(frozen=True)
class AddedOrder:
    """The result of requested edges, each a pair ``(before, after)``.

    Attributes:
        added: those that the operator enforces now.
        implied: those that hold anyway, through data flow or other edges.
        moved: nodes whose position in the program changed.
    """

    added: tuple[Edge, ...] = ()
    implied: tuple[Edge, ...] = ()
    moved: tuple[torch.fx.Node, ...] = ()


def add_control_deps(
    graph: torch.fx.Graph, dependencies: Mapping[torch.fx.Node, Iterable[torch.fx.Node]]
) -> AddedOrder:
    """Make each key of ``dependencies`` run after all nodes of its value, with PyTorch's ``control_deps`` operator.

    A waiting node becomes a call of the operator and keeps its name, users, metadata and, if possible, position;
    ``remove_control_deps`` undoes it. Edges that hold anyway cost nothing. A later dependency moves nodes. An element
    of a tuple stands for the op that makes the tuple. Nothing is changed when an error is raised. As after any change
    of a graph, its module needs ``recompile()`` before it is called.

    Raises:
        OrderingError: a node that is not in ``graph`` or cannot wait, no dependency, or a duplicate one.
        OrderingCycleError: an impossible order, with the nodes of one cycle.
    """
    requested = list(_checked(graph, dependencies))
    moved = sort_by(graph, requested)
    position = {node: i for i, node in enumerate(graph.nodes)}
    wanted = as_dependencies(requested)
    # Edges are added in program order, so that an edge is checked with all earlier ones in place.
    ancestors = Ancestors(graph, (before for before, _ in requested))
    added: list[Edge] = []
    for node in list(graph.nodes):
        needed = ancestors.needed(node, wanted.get(node, ()), position)
        if needed:
            wait_for(node, [as_dependency_target(dependency) for dependency in needed])
            added += ((dependency, node) for dependency in needed)
    enforced = set(added)
    return AddedOrder(tuple(added), tuple(edge for edge in requested if edge not in enforced), moved)


def as_dependencies(edges: Iterable[Edge]) -> dict[torch.fx.Node, list[torch.fx.Node]]:
    """Convert ``(before, after)`` pairs to the format of ``add_control_deps``."""
    dependencies: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for before, after in edges:
        dependencies.setdefault(after, []).append(before)
    return dependencies


def _checked(graph: torch.fx.Graph, dependencies: Mapping[torch.fx.Node, Iterable[torch.fx.Node]]) -> Iterator[Edge]:
    """Yield the edges that have an effect: placeholders and attributes exist before anything runs."""
    if graph.owning_module is None:
        raise OrderingError("the graph has no GraphModule to hold the bodies of control_deps")
    known = set(graph.nodes)

    def require_known(node: object, role: str) -> None:
        if not isinstance(node, torch.fx.Node):
            raise OrderingError(f"{node!r}, {role}, is not a node of an FX graph")
        if node not in known:
            raise OrderingError(
                f"{node.name!r}, {role}, is not in this graph: it was erased, or belongs to another one"
            )

    edges: dict[Edge, None] = {}
    for node, given in dependencies.items():
        require_known(node, "the waiting node")
        if node.op != "call_function":
            raise OrderingError(
                f"{node.name!r} ({node.op}) cannot wait for anything: only function calls have an execution time"
            )
        if isinstance(given, torch.fx.Node) or not isinstance(given, Iterable):
            raise OrderingError(f"dependencies of {node.name!r} must be a list of nodes, not {given!r}")
        listed = list(given)
        if not listed:
            raise OrderingError(f"{node.name!r} has no dependencies: leave it out, Inductor cannot lower an empty wait")
        for number, dependency in enumerate(listed):
            require_known(dependency, f"a dependency of {node.name!r}")
            if dependency.op == "output":
                raise OrderingError(f"{node.name!r} cannot run after the output of its graph")
            if dependency in listed[:number]:
                raise OrderingError(f"{node.name!r} has the dependency {dependency.name!r} twice")
        for dependency in listed:
            before, after = _producer(dependency), _producer(node)
            if before is after:
                raise OrderingCycleError(
                    f"{node.name!r} cannot wait for itself ({dependency.name!r} is made by the same op)",
                    (before.name, after.name),
                )
            edges[before, after] = None
    yield from (edge for edge in edges if edge[0].op not in ("placeholder", "get_attr"))


def _producer(node: torch.fx.Node) -> torch.fx.Node:
    producer = element_of(node)
    return node if producer is None else _producer(producer)


def remove_control_deps(graph: torch.fx.Graph, *, bodies: bool = True) -> tuple[Edge, ...]:
    """Unwrap every ordered op of ``graph``; return the edges as ``(before, after)``, in program order.

    Names, metadata and positions stay. Bodies of higher-order ops (branches, loops) are unwrapped too, unless
    ``bodies`` is false; their edges are not returned. Call ``recompile()`` on the module afterwards.
    """
    edges = [edge for node in list(graph.nodes) for edge in _made_plain(node)]
    undo_dependency_targets(graph)
    owner = graph.owning_module
    for reference in graph.find_nodes(op="get_attr") if bodies and owner is not None else ():
        body = getattr(owner, reference.target, None)
        if isinstance(body, torch.fx.GraphModule) and any(
            is_control_deps(node) or node.op == "get_attr" for node in body.graph.nodes
        ):
            remove_control_deps(body.graph)
            body.recompile()
    return tuple(edges)


def _made_plain(node: torch.fx.Node) -> Iterator[Edge]:
    """Unwrap ``node`` and the nodes in its body (PyTorch nests bodies for repeated ordering)."""
    if not is_control_deps(node):
        return
    dependencies = [element_of(dependency) or dependency for dependency in dependencies_of(node)]
    for stands_for_it in unwrap(node):
        within = list(_made_plain(stands_for_it))
        ends = dict.fromkeys(after for _, after in within) or {stands_for_it: None}
        yield from within
        yield from ((before, after) for after in ends for before in dependencies)


_FLOW = "value"
_EFFECT = "effect"
_REQUESTED = "requested"

_Unit: TypeAlias = "torch.fx.Node | Barrier"
_Reasons: TypeAlias = "Mapping[_Unit, Mapping[_Unit, str]]"


def sort_by(
    graph: torch.fx.Graph, requested: Sequence[Edge], barriers: Sequence[Barrier] = ()
) -> tuple[torch.fx.Node, ...]:
    """Move nodes so that every ``(before, after)`` pair holds; return those whose predecessors changed.

    Kahn's algorithm (A. B. Kahn, "Topological sorting of large networks", 1962) with a heap over program positions: a
    graph that satisfies all edges stays unchanged, and nodes move no further than needed.

    Raises:
        OrderingCycleError: the pairs contradict each other, data flow or effects; ``graph`` is unchanged then.
    """
    position: dict[_Unit, float] = {node: i for i, node in enumerate(graph.nodes)}
    if _holds(position, requested, barriers):
        return ()
    for i, barrier in enumerate(barriers, 1):
        first = min(position[node] for node in barrier.after)
        position[barrier] = first - i / (len(barriers) + 1)
    before = _reasons(graph, requested, barriers)
    sorter = graphlib.TopologicalSorter({unit: before.get(unit, ()) for unit in position})
    with contextlib.suppress(graphlib.CycleError):  # then some units never become ready
        sorter.prepare()
    order: list[_Unit] = []
    ready: list[tuple[float, _Unit]] = []
    while sorter.is_active():
        for unit in sorter.get_ready():
            heapq.heappush(ready, (position[unit], unit))
        _, unit = heapq.heappop(ready)
        order.append(unit)
        sorter.done(unit)
    if len(order) < len(position):
        raise _cycle_error(before, set(position).difference(order), position)
    moved = []
    for previous, node in itertools.pairwise(unit for unit in order if isinstance(unit, torch.fx.Node)):
        if previous.next is not node:
            previous.append(node)
            moved.append(node)
    return tuple(moved)


def _holds(position: Mapping[_Unit, float], requested: Iterable[Edge], barriers: Iterable[Barrier]) -> bool:
    def places(nodes: Iterable[torch.fx.Node]) -> Iterable[float]:
        return map(position.__getitem__, nodes)

    return all(position[a] < position[b] for a, b in requested) and all(
        max(places(barrier.before)) < min(places(barrier.after)) for barrier in barriers
    )


def _reasons(graph: torch.fx.Graph, requested: Iterable[Edge], barriers: Iterable[Barrier]) -> _Reasons:
    """Return, for each node, its required predecessors and why."""
    before: dict[_Unit, dict[_Unit, str]] = defaultdict(dict)
    for node in graph.nodes:
        for source in node.all_input_nodes:
            before[node][source] = _FLOW
    for a, b in order_edges(graph):
        before[b].setdefault(a, _EFFECT)
    for a, b in requested:
        before[b].setdefault(a, _REQUESTED)
    for barrier in barriers:
        before[barrier] = dict.fromkeys(barrier.before, _REQUESTED)
        for node in barrier.after:
            before[node].setdefault(barrier, _REQUESTED)
    return before


def _cycle_error(before: _Reasons, stuck: set[_Unit], position: Mapping[_Unit, float]) -> OrderingCycleError:
    """Walk backwards among the remaining nodes until one repeats."""
    unit = min(stuck, key=position.__getitem__)
    path: dict[_Unit, int] = {}
    trail: list[_Unit] = []
    while unit not in path:
        path[unit] = len(trail)
        trail.append(unit)
        unit = next(source for source in before[unit] if source in stuck)
    cycle = [*trail[path[unit] :], unit][::-1]
    steps = [f"{a.name} before {b.name} ({before[b][a]})" for a, b in itertools.pairwise(cycle)]
    names = [unit.name for unit in cycle]
    return OrderingCycleError(
        f"the requested order has a cycle: {' -> '.join(names)}. It consists of: {'; '.join(steps)}. "
        f"Leave one of the requested edges out.",
        names,
    )


class OrderingError(RegionalError, ValueError):
    """A requested order has no meaning in this graph; the message says which nodes and why."""


class OrderingCycleError(OrderingError):
    """The requested order contradicts itself, data flow, or the order of effects.

    Attributes:
        cycle: names of the nodes (or regions) of one cycle, each before the next, with the first again at the end.
    """

    def __init__(self, message: str, cycle: Sequence[str]) -> None:
        super().__init__(message)
        self.cycle = tuple(cycle)


# Inductor's lowering computes a node with this into a buffer at once (2.11 to 2.15). Any true value is enough.
REALIZED = "inductor_realize_to_strides"
FOR_ORDER = "for order"

# Inductor reads these on the wrapped op; on the operator they would replace its own lowering (2.13 and 2.15).
_META_OF_THE_OP = ("eager_input_vals", "should_fallback")
_FALLBACK_ANNOTATION = "fallback_to_eager"


def is_control_deps(node: torch.fx.Node) -> bool:
    """Return whether ``node`` calls the operator."""
    return node.op == "call_function" and node.target is control_deps()


def dependencies_of(node: torch.fx.Node) -> tuple[torch.fx.Node, ...]:
    """Return the nodes that ``node`` waits for by order only; none for a bare op."""
    if not is_control_deps(node):
        return ()
    return tuple(dependency for dependency in node.args[0] if isinstance(dependency, torch.fx.Node))


def operands_of(node: torch.fx.Node) -> tuple[torch.fx.Node, ...]:
    """Return the nodes whose values ``node`` reads."""
    if not is_control_deps(node):
        return tuple(node.all_input_nodes)
    return tuple(dict.fromkeys(argument for argument in node.args[1:] if isinstance(argument, torch.fx.Node)))


def body_of(node: torch.fx.Node) -> torch.fx.GraphModule:
    """Return the graph that a call of the operator runs.

    Raises:
        OrderingError: the owner of the graph has no such body.
    """
    reference, owner = node.args[1], node.graph.owning_module
    body = getattr(owner, str(reference.target), None) if owner is not None and reference.op == "get_attr" else None
    if not is_graph_module(body):
        raise OrderingError(f"control_deps node {node.name!r} refers to {reference!r}, which is not a graph module")
    found: torch.fx.GraphModule = body
    return found


def wait_for(node: torch.fx.Node, dependencies: Iterable[torch.fx.Node]) -> None:
    """Make ``node`` wait for ``dependencies`` in addition to earlier ones."""
    if not is_control_deps(node):
        graph, owner = node.graph, node.graph.owning_module
        if owner is None:
            raise OrderingError("the graph has no GraphModule to hold the bodies of control_deps")
        arguments = tuple(node.all_input_nodes)
        name = _fresh_name(owner, f"subgraph_{node.name}")
        setattr(owner, name, _body(node, arguments))
        with graph.inserting_before(node):
            reference = graph.get_attr(name)
        node.meta = {key: value for key, value in node.meta.items() if key not in _META_OF_THE_OP}
        custom = node.meta.get("custom")
        if isinstance(custom, dict) and _FALLBACK_ANNOTATION in custom:
            node.meta["custom"] = {key: value for key, value in custom.items() if key != _FALLBACK_ANNOTATION}
        node.target, node.args, node.kwargs = control_deps(), ((), reference, *arguments), {}
    together = dict.fromkeys((*dependencies_of(node), *dependencies))
    node.args = (tuple(together), *node.args[1:])


def _fresh_name(owner: torch.nn.Module, stem: str) -> str:
    name, number = stem, 0
    while hasattr(owner, name):
        name, number = f"{stem}_{number}", number + 1
    return name


def _body(node: torch.fx.Node, arguments: Sequence[torch.fx.Node]) -> torch.fx.GraphModule:
    """Return a graph of ``node`` only, with one placeholder for each node among its arguments."""
    graph = torch.fx.Graph()
    placeholders = {}
    for number, argument in enumerate(arguments):
        placeholder = placeholders[argument] = graph.placeholder(f"arg_{number}")
        placeholder.meta = {key: argument.meta[key] for key in ("val", "tensor_meta") if key in argument.meta}
        owner = argument.graph.owning_module
        if argument.op == "get_attr" and "val" not in placeholder.meta and owner is not None:
            placeholder.meta["val"] = attribute(owner, argument.target)
    inner = graph.node_copy(node, placeholders.__getitem__)
    if isinstance(inner.meta.get("val"), torch.Tensor):
        # The buffer waits. Inductor gives most results of bodies one, but not single elements (2.11 to 2.15).
        inner.meta.setdefault(REALIZED, FOR_ORDER)
    output = graph.output(inner)
    if "val" in inner.meta:
        output.meta["val"] = inner.meta["val"]
    module: torch.fx.GraphModule = lazy_graph_module({}, graph, "OrderedOp")
    return module


def unwrap(node: torch.fx.Node) -> tuple[torch.fx.Node, ...]:
    """Replace a call of the operator with its body; return the nodes that now do its work."""
    graph, body, reference = node.graph, body_of(node), node.args[1]
    arguments = dict(zip(body.graph.find_nodes(op="placeholder"), node.args[2:], strict=True))
    ops = [other for other in body.graph.nodes if other.op not in ("placeholder", "output")]
    if len(ops) == 1 and body.graph.output_node().args[0] is ops[0] and not is_control_deps(ops[0]):
        # ``node`` becomes the bare op again; metadata that passes have added to the call is kept.
        (inner,) = ops
        args, kwargs = torch.fx.node.map_arg((inner.args, inner.kwargs), arguments.__getitem__)
        meta, custom = {**inner.meta, **node.meta}, inner.meta.get("custom")
        if isinstance(custom, dict) and _FALLBACK_ANNOTATION in custom:
            fallback = custom[_FALLBACK_ANNOTATION]
            meta["custom"] = {**node.meta.get("custom", {}), _FALLBACK_ANNOTATION: fallback}
        node.meta = meta
        node.op, node.target, node.args, node.kwargs = inner.op, inner.target, args, kwargs
        stands_for_it: tuple[torch.fx.Node, ...] = (node,)
    else:
        stands_for_it = _inline(node, body, arguments)
    if not reference.users:
        graph.erase_node(reference)
        if not any(other.target == reference.target for other in graph.find_nodes(op="get_attr")):
            delattr(graph.owning_module, reference.target)
    return stands_for_it


def _inline(
    node: torch.fx.Node, body: torch.fx.GraphModule, copies: dict[torch.fx.Node, Any]
) -> tuple[torch.fx.Node, ...]:
    """Copy a body from elsewhere: of several ops, or passing values through."""
    graph, owner = node.graph, node.graph.owning_module
    with graph.inserting_before(node):
        for inner in body.graph.nodes:
            if inner.op in ("placeholder", "output"):
                continue
            copies[inner] = graph.node_copy(inner, copies.__getitem__)
            if inner.op == "get_attr" and owner is not None:
                name = _fresh_name(owner, str(inner.target).replace(".", "_"))
                setattr(owner, name, attribute(body, inner.target))
                copies[inner].target = name
    result = torch.fx.node.map_arg(body.graph.output_node().args[0], copies.__getitem__)
    if isinstance(result, torch.fx.Node):
        node.replace_all_uses_with(result)
    for user in list(node.users):
        if user.target is not operator.getitem:
            raise OrderingError(f"{user.name!r} uses all results of control_deps node {node.name!r} at once")
        user.replace_all_uses_with(result[user.args[1]])
        graph.erase_node(user)
    graph.erase_node(node)
    return tuple(copies[inner] for inner in body.graph.nodes if inner.op == "call_function")
