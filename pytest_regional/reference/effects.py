"""Required order: nodes that must keep their program order without data flow between them.

Three chains (random numbers, collectives, other effects) keep the order of their members; reads and writes of one
storage keep theirs. Assertions are in no chain. Linear in nodes plus edges.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from pytest_regional._torch import operators
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
_AUGMENTED_ASSIGNMENTS = (
    "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "ilshift", "irshift",
)  # fmt: skip
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
        module = node.graph.owning_module
        is_opaque = module is None or not is_graph_module(module.get_submodule(str(node.target)))
        return frozenset((RANDOM, COLLECTIVE, OTHER)) if is_opaque else frozenset()
    if node.op != "call_function":
        return frozenset()
    target = node.target
    if is_higher_order_op(target):
        own = frozenset((RANDOM,)) if "rng_state" in op_name(target) else _impurity(node)
        return own.union(*(effect_classes(inner) for body in bodies_of(node) for inner in body.graph.nodes))
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
    name = op_name(node.target)
    if name.startswith(_FREE_EFFECTS) or name == _ORDERED_OP or written_arguments(node):
        return frozenset()
    return frozenset((OTHER,)) if node.is_impure() else frozenset()


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
    target = node.target
    if node.op != "call_function" or target is operator.getitem:
        return node.op in ("call_module", "call_method")
    if not is_op_overload(target) or op_name(target) in _COPYING_VIEWS:
        return True
    returns = schema_of(target).returns
    return not returns or any(value.alias_info is None or value.alias_info.is_write for value in returns)


def computes(node: torch.fx.Node) -> bool:
    """Return whether ``node`` does more than take a view, pick an element of a tuple, or compute sizes."""
    if isinstance(node.meta.get("val"), (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)):
        runs = op_name(node.target) == "_local_scalar_dense"  # it reads the number from memory
    else:
        runs = launches(node) and not hides_a_view(node.target)
    return runs or bool(effect_classes(node) or written_arguments(node))  # last: the slowest check


def written_arguments(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the argument nodes that ``node`` writes to."""
    if node.op not in ("call_function", "call_method"):
        return []
    target, written = node.target, list[torch.fx.Node]()
    if is_op_overload(target):
        for value in operators.written_arguments(target, node.args, node.kwargs):
            written += _nodes_in(value)
        return written
    name = op_name(target)
    if name == _ORDERED_OP:  # operands of the op in its body follow the first two arguments
        for body in bodies_of(node)[:1]:
            operands = dict(zip(body.graph.find_nodes(op="placeholder"), node.args[2:], strict=False))
            inner = (argument for other in body.graph.nodes for argument in written_arguments(other))
            written += (operand for argument in inner for operand in _nodes_in(operands.get(argument)))
        return written
    if is_higher_order_op(target):
        return node.all_input_nodes if name in _WRITING_HIGHER_ORDER_OPS else []
    written += _nodes_in(node.kwargs.get("out"))
    in_place = name.endswith("_") and not name.endswith("__")
    augments = getattr(target, "__module__", None) == "_operator" and name in _AUGMENTED_ASSIGNMENTS
    if in_place or augments or target is operator.setitem:
        written += _nodes_in(node.args[0])
    return written


def _nodes_in(value: Any) -> list[torch.fx.Node]:
    if isinstance(value, torch.fx.Node):
        return [value]
    return [node for item in value for node in _nodes_in(item)] if isinstance(value, (list, tuple)) else []


def _storage_order(
    graph: torch.fx.Graph, nodes: Iterable[torch.fx.Node], writes: dict[torch.fx.Node, list[torch.fx.Node]]
) -> Iterator[Edge]:
    storages = _Storages(graph)
    writer: dict[object, torch.fx.Node] = {}
    readers: dict[object, list[torch.fx.Node]] = defaultdict(list)  # since the last write
    for node in nodes:
        written = {storages.of(argument) for argument in writes.get(node, ())}
        for storage in dict.fromkeys([storages.of(argument) for argument in _read_arguments(node)]):
            if storage in writer:
                yield writer[storage], node
            if storage in written:
                yield from ((reader, node) for reader in readers[storage])
                writer[storage], readers[storage] = node, []
            else:
                readers[storage].append(node)


def _read_arguments(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the arguments whose memory ``node`` accesses; tuple elements and waits access none."""
    if element_of(node) is not None:
        return []
    return _nodes_in(node.args[1:]) if op_name(node.target) == _ORDERED_OP else node.all_input_nodes


class _Storages:
    """Which values may share memory: by (fake) storage if the trace kept values, else by data flow."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._parent: dict[object, object] = {}
        for node in graph.nodes:
            value, target = node.meta.get("val"), node.target
            is_number = isinstance(value, (int, float, bool))
            if storage_key(value) is not None or is_number or node.op in ("placeholder", "output"):
                continue
            if not (is_op_overload(target) and all(result.alias_info is None for result in schema_of(target).returns)):
                for argument in node.all_input_nodes:
                    self._parent[self.of(node)] = self.of(argument)

    def of(self, node: torch.fx.Node) -> object:
        storage = storage_key(node.meta.get("val"))
        key: object = node if storage is None else storage
        while (parent := self._parent.get(key, key)) is not key:
            self._parent[key] = key = self._parent.get(parent, parent)
        return key
