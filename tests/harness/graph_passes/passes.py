"""Programs, and passes on them: right ones and wrong ones."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx.traceback import annotate

from pytest_regional._torch import symbol
from pytest_regional._torch.inductor import custom_graph_pass_base

aten = torch.ops.aten


def products(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Two products: extern calls, for which no C++ is compiled."""
    with annotate({"compile_with_inductor": {"inductor_region": "products"}}):
        return (x @ w) @ w


def two_regions(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A product in each."""
    with annotate({"compile_with_inductor": {"inductor_region": "first"}}):
        h = x @ w
    h = torch.tanh(h)
    with annotate({"compile_with_inductor": {"inductor_region": "second"}}):
        return h @ w.T


def sums(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """An addition, a product and a multiplication that do not need one another."""
    return torch.cat([x + y, x @ y, x * y])


def nothing(graph: torch.fx.Graph) -> None:
    """A pass that looks and leaves."""


def swap(old: Any, new: Any) -> Any:
    """Return a pass that calls ``new`` in place of ``old``."""

    def swapping(graph: torch.fx.Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=old):
            node.target = new

    return swapping


def second_operand_twice(graph: torch.fx.Graph) -> None:
    """Multiply the second operand by itself: another value, of the same shape wherever both are square."""
    for target in (aten.mm.default, operator.matmul):
        for node in graph.find_nodes(op="call_function", target=target):
            node.args = (node.args[1], node.args[1])


class Named(custom_graph_pass_base()):
    """A pass with options, and a uuid that holds them."""

    def __init__(self, transform=nothing, **options: Any) -> None:
        self.transform, self.options = transform, options

    def __call__(self, graph: torch.fx.Graph) -> None:
        self.transform(graph)

    def uuid(self) -> Any:
        return ("named", *sorted(self.options.items()))


def order_after(later: Any, earlier: Any) -> Any:
    """Return a pass that puts PyTorch's control_deps on ``later``, after ``earlier``."""

    def ordering(graph: torch.fx.Graph) -> None:
        preserve = symbol("torch._inductor.fx_passes.control_dependencies", "preserve_node_ordering")
        ordered_set = symbol("torch.utils._ordered_set", "OrderedSet")
        (first,) = graph.find_nodes(op="call_function", target=earlier)
        (second,) = graph.find_nodes(op="call_function", target=later)
        preserve(graph, {second: ordered_set([first])})

    return ordering
