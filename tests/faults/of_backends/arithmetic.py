"""Faults of arithmetic: the graph of a region computes something else."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from tests.faults.planting import Mutant
from tests.faults.rewriting import cast, is_float, modules, ops, value_of

INTERLEAVED = "suites/regions/test_interleaved.py"
BOUNDARIES = "suites/regions/test_values_across_borders.py"
NORM = "suites/models/test_norm_residual_silu.py"
MOE = "suites/models/test_moe.py"
VALUES = "suites/regions/test_values.py"
LLAMA = "suites/models/test_llama.py"
aten = torch.ops.aten


def _casts_lose_digits(module: torch.fx.GraphModule) -> None:
    # Inductor drops a cast to bfloat16 and back, which would be no fault.
    for node in ops(module, "_to_copy", "convert_element_type"):
        value, source = value_of(node), value_of(node.args[0])
        wide = (torch.float32, torch.float64)
        if is_float(value) and value.dtype in wide and is_float(source):
            _rounded(module, node, 2)


def _products_lose_digits(module: torch.fx.GraphModule) -> None:
    for node in ops(module, "mm", "bmm", "addmm", "baddbmm"):
        if any(value_of(source).dtype not in (torch.float32, torch.float64) for source in node.all_input_nodes):
            continue
        for source in node.all_input_nodes:
            cast(source, torch.bfloat16, [node])
        dtype = value_of(node).dtype
        node.meta["val"] = value_of(node).to(torch.bfloat16)
        cast(node, dtype)


def _wrong_dimension(module: torch.fx.GraphModule) -> None:
    for node in ops(module, "sum", "mean", "amax", "amin"):
        value = value_of(node.args[0])
        if len(node.args) < 2 or not isinstance(value, torch.Tensor) or not isinstance(node.args[1], (list, tuple)):
            continue
        if len(node.args[1]) == 1 and value.dim() == 2 and value.shape[0] == value.shape[1] != 1:
            node.update_arg(1, [1 - node.args[1][0] % 2])


def _accumulation_lost(module: torch.fx.GraphModule) -> None:
    for node in ops(module, "index_put", "_unsafe_index_put"):
        if len(node.args) > 3 and node.args[3]:
            node.update_arg(3, False)
    for node in ops(module, "scatter_add"):
        node.target = aten.scatter.src
    for node in ops(module, "index_add"):
        node.target = aten.index_copy.default


def _scaled(module: torch.fx.GraphModule) -> None:
    """Make the first gradient one per cent too large."""
    output = module.graph.output_node()
    made: Any = output.args[0]
    number = next((i for i, node in enumerate(made) if is_float(value_of(node))), None)
    if number is None:
        return
    with module.graph.inserting_before(output):
        larger = module.graph.call_function(aten.mul.Scalar, (made[number], 1.01))
    larger.meta = dict(made[number].meta)
    output.args = (tuple(larger if i == number else node for i, node in enumerate(made)),)


def _sigmoid_rounded(module: torch.fx.GraphModule) -> None:
    for node in ops(module, "sigmoid", "tanh"):
        _rounded(module, node, 3)


def _rounded(module: torch.fx.GraphModule, node: torch.fx.Node, decimals: int) -> None:
    with module.graph.inserting_after(node):
        rounded = module.graph.call_function(aten.round.decimals, (node,), {"decimals": decimals})
    rounded.meta = dict(node.meta)
    node.replace_all_uses_with(rounded, delete_user_cb=lambda user: user is not rounded)


def _divided_by_neighbour(module: torch.fx.GraphModule) -> None:
    """Take the number of elements of the whole tensor for that of the reduced dimension."""
    for node in ops(module, "mean"):
        value = value_of(node.args[0])
        if len(node.args) > 1 and isinstance(value, torch.Tensor) and value.dim() > 1:
            whole = value_of(node)
            ratio = whole.numel() / max(value.shape[0], 1)
            with module.graph.inserting_after(node):
                wrong = module.graph.call_function(aten.mul.Scalar, (node, 1 / max(ratio, 2)))
            wrong.meta = dict(node.meta)
            node.replace_all_uses_with(wrong, delete_user_cb=lambda user, made=wrong: user is not made)


FAULTS = (
    Mutant(
        "casts_lose_digits",
        "a cast to a wide floating point type in a region keeps two digits",
        ("parity",),
        (VALUES,),
        (modules(_casts_lose_digits),),
        needs=(
            "inside:to_float32",
            "inside:to_float64",
            "inside:float",
            "inside:type_as",
            "inside:sum_float64",
        ),
    ),
    Mutant(
        "products_lose_digits",
        "matrix products in a region are computed in bfloat16",
        ("parity",),
        (INTERLEAVED, LLAMA, MOE),
        (modules(_products_lose_digits),),
        needs=("inside:family:matmul",),
    ),
    Mutant(
        "wrong_dimension_reduced",
        "of square matrices a region reduces the other dimension",
        ("parity",),
        (VALUES,),
        (modules(_wrong_dimension),),
        needs=("inside:sum", "inside:mean", "inside:amax", "inside:amin", "training + region"),
    ),
    Mutant(
        "mean_divided_wrongly",
        "a mean over some dimensions is divided by the wrong number",
        ("parity",),
        (NORM, "suites/models/test_add_rms_norm.py"),
        (modules(_divided_by_neighbour),),
        needs=("inside:mean", "inside:family:norm"),
    ),
    Mutant(
        "accumulation_lost",
        "what is scattered to one place twice is not summed up",
        ("parity",),
        (VALUES, MOE),
        (modules(_accumulation_lost),),
        needs=("inside:family:scatter", "training + inside:family:index"),
    ),
    Mutant(
        "sigmoid_rounded",
        "sigmoid and tanh in a region have three digits",
        ("parity",),
        (VALUES,),
        (modules(_sigmoid_rounded),),
        needs=("inside:sigmoid", "inside:tanh", "inside:silu", "inside:swiglu", "inside:gelu_tanh", "inside:mish"),
    ),
    Mutant(
        "backward_wrong",
        "the first gradient that a region computes is one per cent too large",
        ("parity",),
        (INTERLEAVED, NORM, LLAMA),
        (modules(_scaled, backward_only=True),),
    ),
)
