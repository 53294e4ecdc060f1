"""Order edges: nodes that must keep their program order without data flow between them.

Three chains (random numbers, collectives, other effects) keep the order of their members; reads and writes of one
storage keep theirs. Assertions are in no chain. Linear in nodes plus edges.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from pytest_regional._torch.fx_graphs import bodies_of, is_graph_module
from pytest_regional._torch.operators import hides_a_view, is_higher_order_op, is_op_overload, op_name, schema_of
from pytest_regional._torch.tracing import storage_key

Edge = tuple[torch.fx.Node, torch.fx.Node]


@dataclass(frozen=True, eq=False)
class Barrier:
    """All nodes of ``before`` run before any of ``after``, for as many edges as there are nodes, not pairs."""

    name: str
    before: tuple[torch.fx.Node, ...]
    after: tuple[torch.fx.Node, ...]


RANDOM = "random"
COLLECTIVE = "collective"
OTHER = "other"

_COLLECTIVE_NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d", "symm_mem")
_WRITING_HIGHER_ORDER_OPS = ("triton_kernel_wrapper_mutation", "auto_functionalized_with_mutation")
_FREE_EFFECTS = ("_assert_", "sym_constrain_range")
_ORDERED_OP = "control_deps"
# Views by schema that sometimes copy.
_COPYING_VIEWS = ("reshape", "contiguous", "to")


def order_edges(graph: torch.fx.Graph) -> list[Edge]:
    """Return ``(before, after)`` pairs that must hold besides data flow, in program order."""
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output", "get_attr")]
    effects = {node: effect_classes(node) for node in nodes}
    edges = list(_chains(nodes, effects))
    writes = {node: written for node in nodes if (written := written_arguments(node))}
    if writes:
        edges += _storage_order(graph, nodes, writes)
    return edges


def _chains(nodes: Iterable[torch.fx.Node], effects: dict[torch.fx.Node, frozenset[str]]) -> Iterator[Edge]:
    last: dict[str, torch.fx.Node] = {}
    for node in nodes:
        for effect in sorted(effects[node]):
            if effect in last:
                yield last[effect], node
            last[effect] = node


def effect_classes(node: torch.fx.Node) -> frozenset[str]:
    """Return the chains of ``node``, including those of the bodies of a higher-order op."""
    if node.op == "call_module":
        return frozenset((RANDOM, COLLECTIVE, OTHER)) if _is_opaque(node) else frozenset()
    if node.op != "call_function":
        return frozenset()
    target = node.target
    if is_higher_order_op(target):
        own = frozenset((RANDOM,)) if "rng_state" in _name(target) else _impurity(node)
        return own.union(*map(_body_effects, bodies_of(node)))
    if is_op_overload(target):
        if torch.Tag.nondeterministic_seeded in target.tags:
            return frozenset() if _drops_nothing(node) else frozenset((RANDOM,))
        if target.namespace in _COLLECTIVE_NAMESPACES:
            return frozenset((COLLECTIVE,))
    return _impurity(node)


def _drops_nothing(node: torch.fx.Node) -> bool:
    """Return whether ``node`` draws for a dropout alone, as attention does, and that drops no element."""
    for index, argument in enumerate(schema_of(node.target).arguments):
        if argument.name == "dropout_p":
            given = node.args[index] if index < len(node.args) else node.kwargs.get("dropout_p", argument.default_value)
            return type(given) in (int, float) and given == 0
    return False


def _impurity(node: torch.fx.Node) -> frozenset[str]:
    """Return effects that neither the schema nor the arguments' dependencies show."""
    name = _name(node.target)
    if name.startswith(_FREE_EFFECTS) or name == _ORDERED_OP or written_arguments(node):
        return frozenset()
    return frozenset((OTHER,)) if node.is_impure() else frozenset()


def _is_opaque(node: torch.fx.Node) -> bool:
    module = node.graph.owning_module
    return module is None or not is_graph_module(module.get_submodule(str(node.target)))


def _body_effects(body: torch.fx.GraphModule) -> frozenset[str]:
    return frozenset[str]().union(*(effect_classes(node) for node in body.graph.nodes))


def _name(target: Any) -> str:
    if is_op_overload(target):
        return op_name(target)
    return target if isinstance(target, str) else str(getattr(target, "__name__", target))


def element_of(node: torch.fx.Node) -> torch.fx.Node | None:
    """Return the multi-output producer whose element ``node`` is, or None if it is no such element."""
    if node.target is not operator.getitem or not isinstance(node.args[0], torch.fx.Node):
        return None
    producer = node.args[0]
    value = producer.meta.get("val")
    many = isinstance(value, (list, tuple)) or (value is None and isinstance(node.args[1], int))
    return producer if many else None


def launches(node: torch.fx.Node) -> bool:
    """Return whether ``node`` may run anything: not if it is a view of its argument, or an element of a tuple."""
    target: Any = node.target
    if node.op != "call_function" or target is operator.getitem:
        return node.op in ("call_module", "call_method")
    if not is_op_overload(target) or op_name(target) in _COPYING_VIEWS:
        return True
    returns = schema_of(target).returns
    return not returns or any(value.alias_info is None or value.alias_info.is_write for value in returns)


def computes(node: torch.fx.Node) -> bool:
    """Return whether ``node`` does more than take a view, pick an element of a tuple, or compute sizes."""
    if isinstance(node.meta.get("val"), (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)):
        runs = _name(node.target) == "_local_scalar_dense"  # it reads the number from memory
    else:
        runs = launches(node) and not hides_a_view(node.target)
    return runs or bool(effect_classes(node) or written_arguments(node))  # last: the slowest check


def written_arguments(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the argument nodes that ``node`` writes to."""
    if node.op not in ("call_function", "call_method"):
        return []
    if is_op_overload(node.target):
        return _written_by_schema(node)
    name = _name(node.target)
    if name == _ORDERED_OP:
        return _written_by_body(node)
    if is_higher_order_op(node.target):
        return node.all_input_nodes if name in _WRITING_HIGHER_ORDER_OPS else []
    written = [*_nodes_in(node.kwargs.get("out"))]
    in_place = name.endswith("_") and not name.endswith("__")
    if in_place or node.target is operator.setitem or _is_augmented_assignment(node.target):
        written += _nodes_in(node.args[0])
    return written


def _written_by_body(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Return what the op in ``control_deps`` writes to; its operands follow the first two arguments."""
    written: list[torch.fx.Node] = []
    for body in bodies_of(node)[:1]:
        operands = dict(zip(body.graph.find_nodes(op="placeholder"), node.args[2:], strict=False))
        inner = (argument for other in body.graph.nodes for argument in written_arguments(other))
        written += (operand for argument in inner for operand in _nodes_in(operands.get(argument)))
    return written


def _is_augmented_assignment(target: Any) -> bool:
    return getattr(target, "__module__", None) == "_operator" and _name(target) in (
        "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "ilshift", "irshift",
    )  # fmt: skip


def _written_by_schema(node: torch.fx.Node) -> list[torch.fx.Node]:
    target: Any = node.target
    if not schema_of(target).is_mutable:
        return []
    written: list[torch.fx.Node] = []
    for index, argument in enumerate(schema_of(target).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
            written += _nodes_in(value)
    return written


def _nodes_in(value: Any) -> list[torch.fx.Node]:
    if isinstance(value, torch.fx.Node):
        return [value]
    return [node for item in value for node in _nodes_in(item)] if isinstance(value, (list, tuple)) else []


@dataclass
class _Accesses:
    """Reads and writes of one storage since its last write."""

    writer: torch.fx.Node | None = None
    readers: list[torch.fx.Node] = field(default_factory=list)

    def before(self, writes: bool) -> Iterator[torch.fx.Node]:
        if self.writer is not None:
            yield self.writer
        if writes:
            yield from self.readers


def _storage_order(
    graph: torch.fx.Graph, nodes: Iterable[torch.fx.Node], writes: dict[torch.fx.Node, list[torch.fx.Node]]
) -> Iterator[Edge]:
    storages = _Storages(graph)
    accesses: dict[object, _Accesses] = defaultdict(_Accesses)
    for node in nodes:
        written = {storages.of(argument) for argument in writes.get(node, ())}
        touched = dict.fromkeys([storages.of(argument) for argument in _read_arguments(node)])
        for storage in touched:
            access = accesses[storage]
            yield from ((other, node) for other in access.before(storage in written) if other is not node)
            if storage in written:
                access.writer, access.readers = node, []
            else:
                access.readers.append(node)


def _read_arguments(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the arguments whose memory ``node`` accesses; tuple elements and waits access none."""
    if element_of(node) is not None:
        return []
    return _nodes_in(node.args[1:]) if _name(node.target) == _ORDERED_OP else node.all_input_nodes


class _Storages:
    """Which values may share memory: by (fake) storage if the trace kept values, else by data flow."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._parent: dict[object, object] = {}
        for node in graph.nodes:
            if storage_key(node.meta.get("val")) is None and not _is_known_to_be_new(node):
                for argument in node.all_input_nodes:
                    self._parent[self._find(self._key(node))] = self._find(self._key(argument))

    def of(self, node: torch.fx.Node) -> object:
        return self._find(self._key(node))

    def _key(self, node: torch.fx.Node) -> object:
        storage = storage_key(node.meta.get("val"))
        return node if storage is None else storage

    def _find(self, key: object) -> object:
        while (parent := self._parent.get(key, key)) is not key:
            self._parent[key] = key = self._parent.get(parent, parent)
        return key


def _is_known_to_be_new(node: torch.fx.Node) -> bool:
    """Return whether a value is a number, or the result of an op whose schema aliases no input."""
    if isinstance(node.meta.get("val"), (int, float, bool)) or node.op in ("placeholder", "output"):
        return True
    target: Any = node.target
    return is_op_overload(target) and all(result.alias_info is None for result in schema_of(target).returns)
