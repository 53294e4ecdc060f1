"""Dead-code elimination that keeps ops with effects.

PyTorch's ``Graph.eliminate_dead_code`` drops RNG ops during compilation (eager runs them, and later random numbers
would change), and calls of higher-order operators and functions regardless of their effects.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx

from pytest_regional._torch.fx_graphs import bodies_of, is_graph_module
from pytest_regional._torch.operators import is_higher_order_op, is_op_overload, op_name, schema_of
from pytest_regional.reference.effects import effect_classes, written_arguments
from pytest_regional.reference.pass_protocol import DEFAULT_GRAPHS, Pass
from pytest_regional.reference.pass_uuids import OWN_CODE

# They only run their bodies; operators that are not listed may have any effect.
_AS_PURE_AS_THEIR_BODIES = frozenset(
    (
        "associative_scan", "auto_functionalized", "auto_functionalized_v2", "autograd_function_apply", "cond",
        "custom_function_call", "dynamo_bypassing_wrapper", "flat_apply", "flex_attention", "flex_attention_backward",
        "foreach_map", "hints_wrapper", "invoke_quant", "invoke_quant_packed", "invoke_subgraph", "local_map_hop",
        "map_impl", "out_dtype", "scan", "strict_mode", "tag_activation_checkpoint",
        "triton_kernel_wrapper_functional", "while_loop", "while_loop_stack_output", "wrap",
        "wrap_activation_checkpoint", "wrap_with_autocast", "wrap_with_set_grad_enabled",
    )
)  # fmt: skip
_PURE_MODULES = ("_operator", "operator", "math", "builtins")
_CHECKS = ("assert", "sym_constrain_range", "_check")


def eliminate_dead_code(graph: torch.fx.Graph) -> int:
    """Remove the ops of ``graph`` with unused results and no effect; return how many.

    Kept are RNG ops, writes, collectives and their waits, order edges, operators without a result, those with a
    registered effect, assertions, and calls of unknown functions. Inputs stay. Bodies of higher-order operators are
    cleared, too. Linear in nodes plus edges; a second application removes nothing.
    """
    return _Elimination().run(graph)


class _Elimination:
    """One application: each body is analysed once and cleared once."""

    def __init__(self) -> None:
        self._impure: dict[int, bool] = {}
        self._cleared: set[int] = set()

    def run(self, graph: torch.fx.Graph) -> int:
        removed, unread = 0, []
        callers = {user for node in graph.nodes if node.op == "get_attr" for user in node.users}
        for node in reversed(graph.nodes):
            if node.users or self.has_effect(node):
                removed += sum(map(self._clear, bodies_of(node) if node in callers else ()))
                continue
            graph.erase_node(node)
            removed += node.op != "get_attr"
            unread += [str(node.target)] if node.op == "get_attr" else []
        _remove_bodies(graph, unread)
        return removed

    def _clear(self, body: torch.fx.GraphModule) -> int:
        if id(body) in self._cleared:
            return 0
        self._cleared.add(id(body))
        removed = self.run(body.graph)
        if removed:
            body.recompile()
        return removed

    def has_effect(self, node: torch.fx.Node) -> bool:
        """Return whether ``node`` must stay even if its result is unused."""
        if node.op != "call_function":
            return node.op != "get_attr" and not (node.op == "call_module" and self._runs_pure_graph(node))
        if effect_classes(node) or written_arguments(node) or _checks_something(node):
            return True
        if is_op_overload(node.target):
            return _is_void(node.target)
        if is_higher_order_op(node.target):
            return _name(node) not in _AS_PURE_AS_THEIR_BODIES or _wraps_effect(node) or self._runs_effect(node)
        return not _is_pure_function(node.target)

    def _runs_effect(self, node: torch.fx.Node) -> bool:
        return any(map(self._is_impure, bodies_of(node)))

    def _runs_pure_graph(self, node: torch.fx.Node) -> bool:
        owner = node.graph.owning_module
        module = owner.get_submodule(str(node.target)) if owner is not None else None
        return is_graph_module(module) and not self._is_impure(module)

    def _is_impure(self, body: Any) -> bool:
        if id(body) not in self._impure:
            inner = (node for node in body.graph.nodes if node.op not in ("placeholder", "output"))
            self._impure[id(body)] = any(map(self.has_effect, inner))
        return self._impure[id(body)]


def _checks_something(node: torch.fx.Node) -> bool:
    return any(word in _name(node) for word in _CHECKS)


def _is_void(target: Any) -> bool:
    return not schema_of(target).returns


def _wraps_effect(node: torch.fx.Node) -> bool:
    """Check schema and tags of the operator wrapped by ``auto_functionalized`` and similar operators."""
    wrapped: Any = node.args[0] if node.args else node.kwargs.get("op")
    if not is_op_overload(wrapped):
        return False
    probe = torch.fx.Graph().call_function(wrapped)
    return torch.Tag.nondeterministic_seeded in wrapped.tags or bool(effect_classes(probe))


def _is_pure_function(target: Any) -> bool:
    """Return whether ``target`` only computes with numbers or picks an element."""
    module = getattr(target, "__module__", None)
    if target is print or target is operator.setitem:
        return False
    if module in _PURE_MODULES or getattr(math, getattr(target, "__name__", ""), None) is target:
        return True
    return str(getattr(target, "__name__", "")).startswith("sym_") and str(module).split(".")[0] == "torch"


def _name(node: torch.fx.Node) -> str:
    target: Any = node.target
    if is_op_overload(target):
        return op_name(target)
    return str(target.name() if is_higher_order_op(target) else getattr(target, "__name__", target))


def _remove_bodies(graph: torch.fx.Graph, unread: Sequence[str]) -> None:
    """Remove the bodies with these names from the owner, unless the graph still uses them."""
    owner = graph.owning_module
    if owner is None or not unread:
        return
    meant = {str(node.target) for node in graph.nodes if node.op in ("get_attr", "call_module")}
    for name in dict.fromkeys(unread):
        if name not in meant and "." not in name and is_graph_module(getattr(owner, name, None)):
            delattr(owner, name)


@dataclass(frozen=True)
class DeadCodeElimination(Pass):
    """Removes ops with unused results and no effect: see :func:`eliminate_dead_code`."""

    name = "dead_code_elimination"
    version = OWN_CODE
    graphs: tuple[str, ...] = DEFAULT_GRAPHS

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any] = ()) -> None:
        """Clear the graph of ``gm``; the caller recompiles the module."""
        eliminate_dead_code(gm.graph)
