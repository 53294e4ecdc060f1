"""Matrix products, for which nobody waits for a C++ compiler, and transforms of their Dynamo graphs."""

from __future__ import annotations

import operator

import torch

from pytest_regional import region


@region("r")
def product(x, w):
    return x @ w


def scaled(x, w):
    """A product of ``x * 1``, which a pass may take for ``x``."""
    return product(x * 1, w)


class Product(torch.nn.Module):
    """The product as a module with a parameter."""

    def __init__(self, w):
        super().__init__()
        self.weight = torch.nn.Parameter(w.detach().clone())

    def forward(self, x):
        return product(x, self.weight)


def program_and_inputs(regional, kind, n=8, requires_grad=False):
    """Return ``product`` as a function or a module, and square inputs for it."""
    x, w = regional.randn(n, n, requires_grad=requires_grad), regional.randn(n, n, requires_grad=requires_grad)
    if kind == "function":
        return product, (x, w)
    return Product(w).to(regional.device).requires_grad_(requires_grad), (x,)


def run(compiled, inputs, training=False):
    """Return the output, and in training the gradients of all leaves behind it."""
    if not training:
        with torch.no_grad():
            return [compiled(*inputs)]
    leaves = [*inputs, *getattr(compiled, "parameters", list)()]
    output = compiled(*inputs)
    # No sum: its gradient is expanded, which takes a kernel.
    return [output, *torch.autograd.grad(output, leaves, torch.ones_like(output).tril())]


def products_in(graph):
    return graph.find_nodes(op="call_function", target=operator.matmul)


def square(graph):
    """Take ``x @ x`` for ``x @ w``: whoever ran the pass computes something else."""
    for node in products_in(graph):
        node.args = (node.args[0], node.args[0])


def remove_ones(graph):
    """Take ``x`` for ``x * 1``."""
    for node in graph.find_nodes(op="call_function", target=operator.mul):
        if node.args[1] == 1:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
