"""Copies of graphs as they were at one moment, with the bodies of their operators."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch.fx

from pytest_regional._torch.fx_graphs import attribute, codegen_of, rename_node


class GraphSnapshot(torch.fx.GraphModule):  # type: ignore[misc]
    """A graph as it was: a separate ``GraphModule`` that can be called, and lists ``nodes`` as a ``Graph`` does."""

    @property
    def nodes(self) -> Any:
        """The nodes in program order."""
        return self.graph.nodes


def snapshot(
    module: torch.fx.GraphModule,
    instead: Mapping[int, torch.fx.GraphModule] | None = None,
    *,
    copy_values: bool = False,
) -> GraphSnapshot:
    """Copy ``module``'s graph, names and metadata kept, and every body that it calls.

    Args:
        module: what to copy.
        instead: by ``id`` of a body, what to put in its place: how it was before it changed.
        copy_values: whether tensors and modules that the graph holds are copied too, so that the copy goes on
            computing the same when the original is written to.
    """
    return _snapshot(module, dict(instead or {}), copy_values)


def _snapshot(module: torch.fx.GraphModule, copies: dict[int, Any], copy_values: bool) -> GraphSnapshot:
    graph, values = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    for node in module.graph.nodes:
        values[node] = graph.node_copy(node, values.__getitem__)
    for original, copied in values.items():
        rename_node(copied, original.name)
    graph.set_codegen(copy.copy(codegen_of(module.graph)))
    held = {node.target: attribute(module, node.target) for node in module.graph.nodes if holds_attribute(node)}
    attributes = {name: _copied(value, copies, copy_values) for name, value in held.items()}
    return GraphSnapshot(attributes, graph)


def holds_attribute(node: torch.fx.Node) -> bool:
    """Say whether ``node`` stands for an attribute of its module: a tensor, a submodule, a body."""
    return node.op in ("get_attr", "call_module")


def _copied(value: Any, copies: dict[int, Any], copy_values: bool) -> Any:
    # What two names hold together stays one: a body called twice, tied weights.
    if id(value) not in copies:
        copies[id(value)] = _copy(value, copies, copy_values)
    return copies[id(value)]


def _copy(value: Any, copies: dict[int, Any], copy_values: bool) -> Any:
    if isinstance(value, torch.fx.GraphModule):
        return _snapshot(value, copies, copy_values)
    if not copy_values or not isinstance(value, torch.Tensor | torch.nn.Module):
        return value
    if isinstance(value, torch.Tensor) and not value.is_leaf:
        return value.detach().clone().requires_grad_(value.requires_grad)
    return copy.deepcopy(value)
