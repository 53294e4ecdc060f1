"""The operators of a graph, those in bodies that it calls included, and which of them a pattern names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch.fx

from pytest_regional._text import unknown_name
from pytest_regional._torch.fx_graphs import bodies_of
from pytest_regional._torch.operators import higher_order_operator, operator_types
from pytest_regional.harness.ops import OpError, OpPattern, function_names, method_names, module_names


@dataclass(frozen=True, eq=False)
class Occurrence:
    """One operator at one place.

    Attributes:
        node: the node that calls it.
        names: everything it is called, the most exact first.
        targets: the objects it calls; for a ``call_module`` the module.
        holders: the operators in whose bodies it stands, outermost first.
    """

    node: torch.fx.Node
    names: tuple[str, ...]
    targets: tuple[Any, ...]
    holders: tuple[Occurrence, ...] = ()

    @property
    def chain(self) -> tuple[torch.fx.Node, ...]:
        """The node, and before it the nodes in whose bodies it stands, outermost first."""
        return (*(holder.node for holder in self.holders), self.node)

    @property
    def name(self) -> str:
        """The most exact name."""
        return self.names[0]


def occurrences(module: torch.fx.GraphModule) -> list[Occurrence]:
    """Return every operator in program order; bodies stand where they are first called, behind their caller."""
    return list(_occurrences(module, (), set()))


def _occurrences(module: torch.fx.GraphModule, holders: tuple[Occurrence, ...], seen: set[int]) -> Iterator[Occurrence]:
    for node in module.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        targets = _targets(node, module)
        names = [name for target in targets for name in _names(node, target)]
        one = Occurrence(node, tuple(dict.fromkeys(names)), targets, holders)
        yield one
        for body in bodies_of(node, module, modules=True):
            if id(body) not in seen:
                seen.add(id(body))
                yield from _occurrences(body, (*holders, one), seen)


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
        return method_names(str(node.target))
    if node.op == "call_module":
        return module_names(target, str(node.target))
    return function_names(target)


def meant(pattern: OpPattern, present: Sequence[Occurrence]) -> list[Occurrence]:
    """Return the occurrences that ``pattern`` names, in program order; with ``>`` those in a body of that operator."""
    return pattern.chosen([one for one in present if pattern.is_called(one.names, one.targets) and _held(pattern, one)])


def _held(pattern: OpPattern, one: Occurrence) -> bool:
    return pattern.inside is None or any(pattern.inside in outer.names for outer in one.holders)


def require_known(patterns: Iterable[OpPattern], present: Sequence[Occurrence]) -> None:
    """Refuse a pattern that matches nothing in ``present`` and that torch does not know.

    Raises:
        OpError: with the nearest, and all that are there.
    """
    for pattern in patterns:
        if not pattern.is_known and not meant(replace(pattern, ordinal=None), present):
            there = {one.name for one in present} or {"no operator at all"}
            raise OpError(
                f"{unknown_name('operator', pattern.text, there)} These are the operators of the graphs before and "
                f"after the pass; torch knows no other of that name, so an assertion about it could not fail."
            )
