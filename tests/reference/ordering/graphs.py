"""Graphs for the tests of order: made node by node, so that a test says what it is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten


def traced(function: Callable[..., Any], *inputs: Any) -> torch.fx.GraphModule:
    """Trace ``function`` into ATen ops with fake values."""
    return make_fx(function, tracing_mode="fake")(*inputs)


def node(gm: torch.fx.GraphModule, name: str) -> torch.fx.Node:
    """Return the node called ``name``."""
    return next(node for node in gm.graph.nodes if node.name == name)


def names(gm: torch.fx.GraphModule) -> list[str]:
    """Return the names of all nodes that run, in order."""
    return [node.name for node in gm.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]


def described(gm: torch.fx.GraphModule) -> dict[str, tuple[Any, ...]]:
    """Describe each node but for its place in the program."""
    return {node.name: _described(node) for node in gm.graph.nodes}


def _described(node: torch.fx.Node) -> tuple[Any, ...]:
    flow = str(node.args), str(node.kwargs), sorted(map(str, node.users))
    return node.op, str(node.target), *flow, sorted(node.meta)
