"""The pass: set it as ``torch._inductor.config.pre_grad_custom_pass``."""

from __future__ import annotations

import operator

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

_SIGMOIDS = (torch.sigmoid, torch.nn.functional.sigmoid)
_PRODUCTS = (operator.mul, torch.mul)


class FuseSiLU(CustomGraphPass):
    """Put ``silu(x)`` in the place of ``x * sigmoid(x)``, on either side, where nobody else reads the sigmoid."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Change ``graph`` in place."""
        for product in list(graph.nodes):
            if product.op != "call_function" or product.target not in _PRODUCTS or len(product.args) != 2:
                continue
            gate = _gate(*product.args) or _gate(*reversed(product.args))
            if gate is None:
                continue
            with graph.inserting_before(product):
                fused = graph.call_function(torch.nn.functional.silu, (gate.args[0],))
            # Whoever compiles by regions must find the new node in the region of the old one.
            fused.meta = dict(product.meta)
            product.replace_all_uses_with(fused)
            graph.erase_node(product)
            graph.erase_node(gate)

    def uuid(self) -> bytes:
        """Say which pass this is: with another text of this file no cached result of the old one is taken."""
        return get_hash_for_files((__file__,))


def _gate(value: object, sigmoid: object) -> torch.fx.Node | None:
    """Return ``sigmoid`` if it is that of ``value`` and has one reader."""
    if not isinstance(sigmoid, torch.fx.Node) or sigmoid.args[:1] != (value,) or len(sigmoid.users) != 1:
        return None
    is_sigmoid = sigmoid.target in _SIGMOIDS if sigmoid.op == "call_function" else sigmoid.target == "sigmoid"
    return sigmoid if is_sigmoid else None
