"""Order inside a region, carried over Inductor's second trace to its scheduler.

Inductor traces a region again, which runs through ``control_deps`` and loses it (torch 2.11 to 2.15). So a region is
passed without the operator, with marks on its ops instead. Marks are annotations, which a trace copies to all ops of a
decomposition. After Inductor's own graph passes the marks are read and the operator is inserted.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch.fx

from pytest_regional._torch.fx_graphs import called_attributes, set_attribute
from pytest_regional._torch.inductor import appended_passes, custom_graph_pass_base
from pytest_regional._torch.operators import is_op_overload
from pytest_regional.reference.effects import Edge, effect_classes, launches
from pytest_regional.reference.ordering.edges import (
    OrderingError,
    add_control_deps,
    is_control_deps,
    remove_control_deps,
)

MARK = "pytest_regional_order"


@dataclass(frozen=True)
class MarkedOrder:
    """Which mark comes before which; ``identity`` distinguishes orders and graphs in caches."""

    edges: tuple[tuple[int, int], ...] = ()
    identity: str = ""

    @classmethod
    def of(cls, module: torch.fx.GraphModule, edges: tuple[Edge, ...]) -> MarkedOrder:
        """Mark the ops on ``edges``, and ordered ops in bodies, for which ``module`` gets plain copies."""
        found = (*edges, *_order_of_bodies(module))
        if not found:
            return cls()
        marks = {node: number for number, node in enumerate(dict.fromkeys(itertools.chain(*found)))}
        numbered = tuple((marks[a], marks[b]) for a, b in found)
        # Of graph and order: the same in every process, whatever the nodes' names.
        identity = hashlib.sha256("\n".join((*_lines(module, marks), repr([*numbered]))).encode()).hexdigest()
        for node, number in marks.items():
            node.meta["custom"] = {**node.meta.get("custom", {}), MARK: number}
        return cls(numbered, identity)


def _order_of_bodies(module: torch.fx.GraphModule) -> tuple[Edge, ...]:
    def holds_order(body: torch.fx.GraphModule) -> bool:
        return any(map(is_control_deps, body.graph.nodes)) or any(map(holds_order, called_attributes(body).values()))

    found: tuple[Edge, ...] = ()
    for path, body in called_attributes(module).items():
        if holds_order(body):
            duplicate = copy.deepcopy(body)
            set_attribute(module, path, duplicate)
            found += remove_control_deps(duplicate.graph, bodies=False) + _order_of_bodies(duplicate)
            duplicate.recompile()
    return found


def _lines(module: torch.fx.GraphModule, marks: dict[torch.fx.Node, int]) -> Iterator[str]:
    numbers = {node: f"%{number}" for number, node in enumerate(module.graph.nodes)}
    for node in module.graph.nodes:
        arguments = torch.fx.node.map_arg((node.args, node.kwargs), numbers.__getitem__)
        yield f"{node.op} {node.target if node.op == 'call_function' else ''} {arguments} {marks.get(node)}"
    for body in called_attributes(module).values():
        yield from _lines(body, marks)


_NUMBER = "pytest_regional_number"

Dependencies = dict[torch.fx.Node, list[torch.fx.Node]]


@dataclass
class _Snapshot:
    """A graph before the passes: the marked numbers, and the op and users of each number."""

    by_mark: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    targets: dict[int, Any] = field(default_factory=dict)
    users: dict[int, list[int]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)


class Snapshots:
    """The graphs of one region: its own, and those of bodies; ``edges`` order the marks."""

    def __init__(self, edges: Iterable[tuple[int, int]]) -> None:
        self._after: dict[int, list[int]] = defaultdict(list)
        for a, b in edges:
            self._after[a].append(b)
        self._numbers = itertools.count()
        self._of_number: dict[int, _Snapshot] = {}

    def note(self, graph: torch.fx.Graph) -> None:
        """Assign numbers to the nodes of ``graph``."""
        snapshot = _Snapshot()
        for node in graph.nodes:
            number = node.meta[_NUMBER] = next(self._numbers)
            self._of_number[number] = snapshot
            snapshot.targets[number], snapshot.names[number] = node.target, node.name
            custom = node.meta.get("custom")
            mark = custom.get(MARK) if isinstance(custom, dict) else None  # its own, or inherited
            if node.op == "call_function" and mark is not None:
                snapshot.by_mark[mark].append(number)
        for node in graph.nodes:
            snapshot.users[node.meta[_NUMBER]] = [user.meta[_NUMBER] for user in node.users]

    def dependencies(self, graph: torch.fx.Graph) -> Dependencies:
        """Return which nodes of ``graph`` must wait for which.

        Raises:
            OrderingError: one op replaced several that another op must run between.
        """
        numbers = (node.meta[_NUMBER] for node in graph.nodes if _NUMBER in node.meta)
        snapshot = self._of_number.get(next(numbers, -1))
        if snapshot is None or not snapshot.by_mark:
            return {}
        return _Standing(graph, snapshot).dependencies(self._after)


class _Standing:
    """A graph after the passes, compared with its snapshot from before."""

    def __init__(self, graph: torch.fx.Graph, snapshot: _Snapshot) -> None:
        self._snapshot = snapshot
        self._position = {node: i for i, node in enumerate(graph.nodes)}
        self._same: dict[int, list[torch.fx.Node]] = defaultdict(list)
        for node in graph.nodes:
            number = node.meta.get(_NUMBER)
            if number is not None and snapshot.targets.get(number) == node.target:
                self._same[number].append(node)
        self._old = {node for nodes in self._same.values() for node in nodes}
        self._nodes = {mark: self._nodes_of(numbers) for mark, numbers in snapshot.by_mark.items()}

    def dependencies(self, after: dict[int, list[int]]) -> Dependencies:
        found: Dependencies = defaultdict(list)
        for mark, nodes in self._nodes.items():
            for follower in self._followers(mark, after):
                for node, dependencies in self._edge(mark, follower, _last(nodes)):
                    found[node] += [other for other in dependencies if other not in found[node]]
        return dict(found)

    def _followers(self, mark: int, after: dict[int, list[int]]) -> Iterator[int]:
        """Yield the following marks; if nothing runs for one, those after it."""
        seen, stack = {mark}, list(after.get(mark, ()))
        while stack:
            following = stack.pop()
            if following in seen:
                continue
            seen.add(following)
            if _first(self._nodes.get(following, [])):
                yield following
            else:
                stack += after.get(following, ())

    def _edge(
        self, mark: int, follower: int, dependencies: Sequence[torch.fx.Node]
    ) -> Iterator[tuple[torch.fx.Node, list[torch.fx.Node]]]:
        """Pair the nodes that run for two marks, except for pairs that data flow reverses."""
        possible = {
            node: [other for other in dependencies if other is not node and not self._flows(node, other)]
            for node in _first(self._nodes[follower])
        }
        if dependencies and not any(possible.values()):
            raise OrderingError(
                f"{self._name(follower)} must run after {self._name(mark)}, but Inductor's graph passes made "
                f"{', '.join(node.name for node in possible)} of it, which {dependencies[0].name} needs. "
                f"Order other ops, or keep Inductor from fusing these in the graph."
            )
        yield from ((node, others) for node, others in possible.items() if others)

    def _flows(self, source: torch.fx.Node, target: torch.fx.Node) -> bool:
        floor = self._position[source]

        def inputs(node: torch.fx.Node) -> list[torch.fx.Node]:
            return [other for other in node.all_input_nodes if self._position[other] >= floor]

        return source in _reached([target], inputs)

    def _name(self, mark: int) -> str:
        return repr(self._snapshot.names[self._snapshot.by_mark[mark][0]])

    def _nodes_of(self, numbers: Iterable[int]) -> list[torch.fx.Node]:
        """Return the current nodes for ops that had ``numbers``, in program order."""
        found = {node for number in numbers for node in self._same.get(number) or self._replacing(number)}
        return sorted((node for node in found if node.op == "call_function"), key=self._position.__getitem__)

    def _replacing(self, number: int) -> set[torch.fx.Node]:
        """Return the new nodes before the nearest remaining users of ``number``."""
        users = _reached([number], lambda one: [] if one in self._same else self._snapshot.users[one])
        there = [node for user in users if user != number for node in self._same.get(user, ())]
        inputs = [source for node in there for source in node.all_input_nodes if source not in self._old]
        return _reached(inputs, lambda node: [source for source in node.all_input_nodes if source not in self._old])


def _reached(start: Iterable[Any], neighbours: Callable[[Any], Iterable[Any]]) -> set[Any]:
    seen, stack = set(start), list(start)
    while stack:
        fresh = set(neighbours(stack.pop())) - seen
        seen |= fresh
        stack += fresh
    return seen


def _first(nodes: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """Return the first of ``nodes``: none after another one.

    Views run nothing, and Inductor computes a tensor of constants in the loops that read it. So they are not among the
    first ones, unless ``nodes`` holds nothing but constants.
    """
    covered: set[torch.fx.Node] = set()
    first: list[torch.fx.Node] = []
    constants: list[torch.fx.Node] = []
    for node in nodes:
        sources = [source for source in node.all_input_nodes if source in nodes]
        if any(source in covered or (launches(source) and not _is_constant(source)) for source in sources):
            covered.add(node)
        elif launches(node):
            (constants if _is_constant(node) else first).append(node)
    return first or constants


def _is_constant(node: torch.fx.Node) -> bool:
    return is_op_overload(node.target) and not node.all_input_nodes and not effect_classes(node)


def _last(nodes: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """Return the last of ``nodes``; if all are views, the last of these."""
    covered: set[torch.fx.Node] = set()
    last = []
    for node in reversed(nodes):
        users = [user for user in node.users if user in nodes]
        if any(user in covered or launches(user) for user in users):
            covered.add(node)
        elif launches(node):
            last.append(node)
    return last[::-1] or list(nodes[-1:])


Result = TypeVar("Result")
WriteModule = Callable[[], tuple[torch.fx.GraphModule, tuple[Edge, ...]]]


def compile_in_order(write: WriteModule, compile_module: Callable[[torch.fx.GraphModule], Result]) -> Result:
    """Return ``compile_module(module)``, where Inductor keeps the edges that ``write`` returns with the module.

    The order inside bodies of the module is kept too. If Inductor's graph patterns merge ops that another op must run
    between, ``write`` and ``compile_module`` are called again, and the operator is inserted before those patterns.

    Raises:
        OrderingError: wrapped by Inductor, if ops were merged even before that.
    """
    module, edges = write()
    carrier = _Carrier(MarkedOrder.of(module, edges))
    try:
        with carrier.passes("post_grad_custom_post_pass"):
            return compile_module(module)
    except Exception:
        if not carrier.ops_were_merged:
            raise
    module, edges = write()
    with _Carrier(MarkedOrder.of(module, edges)).passes("post_grad_custom_pre_pass"):
        return compile_module(module)


class _Carrier:
    """The passes of one compile: one records a graph before Inductor changes it, the other inserts the operator."""

    def __init__(self, order: MarkedOrder) -> None:
        self._order = order
        self._snapshots = Snapshots(order.edges)
        self.ops_were_merged = False

    @contextlib.contextmanager
    def passes(self, stage: str) -> Iterator[None]:
        """Run the passes meanwhile, the second one at ``stage``; none if there is nothing to order."""
        if not self._order.edges:
            yield
            return
        with appended_passes(joint_custom_pre_pass=self._pass(self._snapshots.note), **{stage: self._pass(self._add)}):
            yield

    def _add(self, graph: torch.fx.Graph) -> None:
        try:
            dependencies = self._snapshots.dependencies(graph)
            if dependencies:
                add_control_deps(graph, dependencies)
        except OrderingError:  # the region's own graph has no cycle
            self.ops_were_merged = True
            raise

    def _pass(self, action: Callable[[torch.fx.Graph], None]) -> Any:
        base: Any = custom_graph_pass_base()
        identity = self._order.identity

        class CarriedOrder(base):  # type: ignore[misc]
            def __call__(self, graph: torch.fx.Graph) -> None:
                action(graph)

            def uuid(self) -> str:
                return identity

        return CarriedOrder()
