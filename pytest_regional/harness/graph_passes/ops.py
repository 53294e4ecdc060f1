"""Operators in a graph: where they stand, what they are called, and how an assertion names them."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from pytest_regional._torch.graph_passes import higher_order_operator, operator_types
from pytest_regional.harness.graph_passes.snapshot import attribute

_PUBLIC_MODULES = (torch, torch.nn.functional, torch.special, torch.linalg, torch.fft, operator, math)


@dataclass(frozen=True, eq=False)
class Occurrence:
    """One operator at one place.

    Attributes:
        node: the node that calls it.
        names: everything it is called, the most exact first.
        targets: the objects it calls; for a ``call_module`` the module.
        chain: the node, and before it the nodes in whose bodies it stands, outermost first.
    """

    node: torch.fx.Node
    names: tuple[str, ...]
    targets: tuple[Any, ...]
    chain: tuple[torch.fx.Node, ...]

    @property
    def name(self) -> str:
        """The most exact name."""
        return self.names[0]


def occurrences(module: torch.fx.GraphModule) -> list[Occurrence]:
    """Return every operator in program order; bodies stand where they are first called, behind their caller."""
    return list(_occurrences(module, (), set()))


def _occurrences(module: torch.fx.GraphModule, outer: tuple[torch.fx.Node, ...], seen: set[int]) -> Iterator[Any]:
    for node in module.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        chain = (*outer, node)
        targets = _targets(node, module)
        names = [name for target in targets for name in _names(node, target)]
        yield Occurrence(node, tuple(dict.fromkeys(names)), targets, chain)
        for body in bodies_of(node, module):
            if id(body) not in seen:
                seen.add(id(body))
                yield from _occurrences(body, chain, seen)


def bodies_of(node: torch.fx.Node, module: torch.fx.GraphModule) -> list[torch.fx.GraphModule]:
    """Return the graph modules that ``node`` of ``module`` calls: of ``control_deps``, ``cond``, a partition, ..."""
    held = [module.get_submodule(str(node.target))] if node.op == "call_module" else []
    held += [attribute(module, n.target) for n in node.all_input_nodes if n.op == "get_attr"]
    return [body for body in held if isinstance(body, torch.fx.GraphModule)]


def _targets(node: torch.fx.Node, module: torch.fx.GraphModule) -> tuple[Any, ...]:
    if node.op == "call_module":
        return (module.get_submodule(str(node.target)),)
    # auto_functionalized(op, ...) and its kind run the operator that they are given.
    wraps = (
        isinstance(node.target, higher_order_operator()) and node.args and isinstance(node.args[0], operator_types())
    )
    return (node.target, node.args[0]) if wraps else (node.target,)


def _names(node: torch.fx.Node, target: Any) -> list[str]:
    if node.op == "call_method":
        return [f".{target}", f"Tensor.{target}", f"torch.Tensor.{target}"]
    if node.op == "call_module":
        cls = type(target)
        public = f"torch.nn.{cls.__name__}" if getattr(torch.nn, cls.__name__, None) is cls else _qualified(cls)
        return [public, cls.__name__, str(node.target)]
    return function_names(target)


def function_names(target: Any) -> list[str]:
    """Return what a function that a graph calls may be called, the most exact name first."""
    overload, packet = operator_types()
    if isinstance(target, overload):
        return [str(target), str(target.overloadpacket)]
    if isinstance(target, packet):
        return [str(target)]
    if isinstance(target, higher_order_operator()):
        return [target.name(), f"higher_order.{target.name()}"]
    name = str(getattr(target, "__name__", target))
    return [_public_name(target, name), name]


def _public_name(target: Any, name: str) -> str:
    for module in _PUBLIC_MODULES:
        if getattr(module, name, None) is target:
            return f"{module.__name__}.{name}"
    return _qualified(target)


def _qualified(target: Any) -> str:
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None) or str(target)
    module = getattr(target, "__module__", None)
    return f"{module}.{name}" if module else str(name)
