"""Programs whose generated code is looked at; those of matrix products alone need no C++ compiler."""

from __future__ import annotations

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.fx_passes.control_dependencies import preserve_node_ordering
from torch.utils._ordered_set import OrderedSet

from tests.harness.programs import in_region


def train(a, b):
    """Two products, and a kernel that needs both."""
    c, d = a + 1, a @ b
    return torch.nn.functional.silu(d) * c + (d @ b).sum()


def chain(a, b):
    """A kernel, a product, a kernel: nothing can be fused."""
    return ((a + 1) @ b).sin() * 2


def independent(a, b):
    """A sum and a multiple of it, and a product that has nothing to do with them."""
    c = a + 1
    return c * 2, b @ b


class InOrder(CustomGraphPass):
    """Order ``independent``: the sum, the product, the multiple."""

    def __call__(self, graph):
        """Add the edges with PyTorch's own operator."""
        nodes = {str(node.target): node for node in graph.nodes}
        total, product, multiple = (nodes[f"aten.{name}"] for name in ("add.Tensor", "mm.default", "mul.Tensor"))
        preserve_node_ordering(graph, {product: OrderedSet([total]), multiple: OrderedSet([product])})

    def uuid(self):
        """Say that results must not be cached."""


def products(a, b):
    """Four products, each of the one before: two buffers are enough."""
    return a @ b @ b @ b @ b


def held(a, b):
    """Three products, and one merged with an addition: the result of the first is needed to the end."""
    first = a @ b
    return first + first @ b @ b @ b


def branch(p, x):
    """A product and a kernel in both branches, and a kernel behind them."""
    return torch.cond(p, lambda x: (x @ x).sin(), lambda x: x.cos() @ x, (x,)) + 1


def copies(a, b):
    """A transposed copy, and a sort that Inductor leaves to ATen."""
    return a.t().contiguous(), b.sort().values


def two_regions(x, w):
    """A product in each of two regions, another operator between."""
    with in_region("first"):
        h = x @ w
    h = torch.tanh(h)
    with in_region("second"):
        h = torch.addmm(h, h, w)
    return h.cos()


def collectives(x):
    """A gather in flight while a product runs."""
    import torch.distributed._functional_collectives as functional

    gathered = functional.all_gather_tensor(x, 0, "0")
    product = x @ x
    return functional.wait_tensor(gathered), product @ product
