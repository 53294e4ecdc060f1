"""Which ops hide a collective: the table, and the hook for users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.fx

from pytest_regional._torch.region_compile import is_graph_module

Cost = Callable[[torch.fx.Node], float]

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "linear", "matmul", "einsum",
             "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm", "_int_mm", "_addmm_activation", "_linear_pointwise",
             "_weight_int4pack_mm", "_weight_int8pack_mm")  # fmt: skip
_CONVOLUTIONS = ("convolution", "_convolution", "convolution_backward", "convolution_overrideable",
                 "_convolution_pointwise", "mkldnn_convolution", "cudnn_convolution")  # fmt: skip
_ATTENTION = ("flex_attention", "flex_attention_backward", "_flash_attention_forward", "_flash_attention_backward",
              "_efficient_attention_forward", "_efficient_attention_backward")  # fmt: skip
_COMPUTE = frozenset((*_PRODUCTS, *_CONVOLUTIONS, *_ATTENTION))


def compute_cost(node: torch.fx.Node) -> float:
    """Return 1.0 for a matrix product, convolution or attention, 0.0 for other ops, the sum for what calls a graph.

    The default of ``overlap_collectives(cost=...)``: how much communication ``node`` can hide, 0 for none.
    """
    if node.op == "call_function" and _is_compute(_name(node.target)):
        return 1.0
    if node.op not in ("call_function", "call_module"):
        return 0.0
    return float(sum(compute_cost(inner) for body in _bodies(node) for inner in body.graph.nodes))


def _is_compute(name: str) -> bool:
    return name in _COMPUTE or name.startswith("_scaled_dot_product_")


def _name(target: Any) -> str:
    return str(getattr(target, "_opname", None) or getattr(target, "__name__", target))


def _bodies(node: torch.fx.Node) -> list[torch.fx.GraphModule]:
    names = [str(argument.target) for argument in node.all_input_nodes if argument.op == "get_attr"]
    if node.op == "call_module":
        names.append(str(node.target))
    owner = node.graph.owning_module
    modules = dict(owner.named_modules()) if names and owner is not None else {}
    return [modules[name] for name in names if is_graph_module(modules.get(name))]
