"""Whether two graphs are the same up to the names of their nodes."""

from __future__ import annotations

from typing import Any

import torch.fx

from pytest_regional.harness.graph_passes.snapshot import attribute

Structure = tuple[Any, ...]


def structure_of(module: torch.fx.GraphModule) -> Structure:
    """Return what two graphs that differ in names alone have in common: kind, target and arguments of every node."""
    numbers = {node: index for index, node in enumerate(module.graph.nodes)}
    return tuple(_node(node, module, numbers) for node in module.graph.nodes)


def _node(node: torch.fx.Node, module: torch.fx.GraphModule, numbers: dict[torch.fx.Node, int]) -> Structure:
    if node.op == "placeholder":
        return ("placeholder",)
    arguments = torch.fx.node.map_aggregate((node.args, node.kwargs), lambda value: _argument(value, numbers))
    return (node.op, _target(node, module), repr(arguments))


def _argument(value: Any, numbers: dict[torch.fx.Node, int]) -> str:
    return f"%{numbers[value]}" if isinstance(value, torch.fx.Node) else repr(value)


def _target(node: torch.fx.Node, module: torch.fx.GraphModule) -> Any:
    if node.op == "get_attr":
        value = attribute(module, node.target)
        # A body's name is chosen by whoever made it: what counts is what it holds.
        return structure_of(value) if isinstance(value, torch.fx.GraphModule) else node.target
    return node.target
