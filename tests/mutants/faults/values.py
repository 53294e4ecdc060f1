"""Faults of values: a region computes something else, or hands over what is right in the wrong way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from tests.mutants.planting import Mutant, Patch
from tests.mutants.rewriting import (
    Call,
    alike,
    calls,
    cast,
    exchanged,
    is_float,
    modules,
    ops,
    results,
    value_of,
)

INTERLEAVED = "suites/regions/test_interleaved.py"
EFFECTS = "suites/regions/test_effects.py"
STRIDES = "suites/regions/test_strides.py"
BORDERS = "suites/regions/test_values_across_borders.py"
SIZES = "suites/regions/test_symbolic_sizes.py"
NORM = "suites/models/test_norm_residual_silu.py"
MOE = "suites/models/test_moe.py"
LLAMA = "suites/models/test_llama.py"
aten = torch.ops.aten


# Calls


def _results_exchanged(right: Call) -> Call:
    return lambda *arguments: exchanged(right(*arguments))


def _arguments_exchanged(right: Call) -> Call:
    return lambda *arguments: right(*exchanged(arguments))


def _first_input_kept(right: Call) -> Call:
    kept: list[torch.Tensor] = []

    def call(*arguments: Any) -> Sequence[Any]:
        changed = list(arguments)
        number = next((i for i, value in enumerate(changed) if is_float(value)), None)
        if number is not None:
            kept.append(changed[number].detach().clone())
            if alike(kept[0], changed[number]):
                changed[number] = kept[0]
        return right(*changed)

    return call


def _first_sizes_kept(right: Call) -> Call:
    kept: list[int] = []

    def call(*arguments: Any) -> Sequence[Any]:
        sizes = [value for value in arguments if type(value) is int]
        kept.extend(sizes[len(kept) :])
        remaining = iter(kept)
        return right(*[next(remaining) if type(value) is int else value for value in arguments])

    return call


def _input_overwritten(right: Call) -> Call:
    def call(*arguments: Any) -> Sequence[Any]:
        made = right(*arguments)
        pair = next(((a, m) for m in made for a in arguments if is_float(a) and alike(a, m)), None)
        if pair and pair[0].untyped_storage()._cdata != pair[1].untyped_storage()._cdata:
            pair[0].detach().data.copy_(pair[1].detach())
        return made

    return call


def _same_memory_each_time(right: Call) -> Call:
    kept: list[torch.Tensor] = []

    def call(*arguments: Any) -> Sequence[Any]:
        made = list(right(*arguments))
        if made and is_float(made[0]) and not made[0].requires_grad:
            if kept and alike(kept[0], made[0]):
                kept[0].copy_(made[0])
                made[0] = kept[0]
            elif not kept:
                kept.append(made[0])
        return made

    return call


def _aliases_cloned(right: Call) -> Call:
    def call(*arguments: Any) -> Sequence[Any]:
        given = {value.untyped_storage()._cdata for value in arguments if isinstance(value, torch.Tensor)}
        return [
            torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value)
            if isinstance(value, torch.Tensor) and value.untyped_storage()._cdata in given
            else value
            for value in right(*arguments)
        ]

    return call


def _turned(value: torch.Tensor) -> torch.Tensor:
    """Lay a matrix out by columns where it was by rows."""
    if value.dim() < 2 or not value.is_contiguous() or min(value.shape[-2:]) < 2:
        return value
    return value.transpose(-1, -2).contiguous().transpose(-1, -2)


def _widened(value: torch.Tensor) -> torch.Tensor:
    return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value


def _tail_off(value: torch.Tensor) -> torch.Tensor:
    if value.numel() < 3 or value.numel() % 4 == 0:
        return value
    changed = value.clone()
    changed[(-1,) * value.dim()] *= 1.01
    return changed


def _nan_lost(value: torch.Tensor) -> torch.Tensor:
    return torch.where(value.isnan(), torch.zeros_like(value), value)


def _own_draws(right: Call) -> Call:
    def call(*arguments: Any) -> Sequence[Any]:
        before = torch.get_rng_state()
        torch.manual_seed(0)
        try:
            return right(*arguments)
        finally:
            torch.set_rng_state(before)

    return call


def _one_draw_more(right: Call) -> Call:
    def call(*arguments: Any) -> Sequence[Any]:
        torch.rand(())
        return right(*arguments)

    return call


# Graphs of regions


def _casts_lose_digits(module: torch.fx.GraphModule) -> None:
    for node in ops(module, "_to_copy", "convert_element_type"):
        value, source = value_of(node), value_of(node.args[0])
        wide = (torch.float32, torch.float64)
        if is_float(value) and value.dtype in wide and is_float(source):
            cast(cast(node, torch.bfloat16), value.dtype)


def _products_lose_digits(module: torch.fx.GraphModule) -> None:
    for node in ops(module, "mm", "bmm", "addmm", "baddbmm"):
        for source in node.all_input_nodes:
            value = value_of(source)
            if is_float(value) and value.dtype in (torch.float32, torch.float64):
                cast(cast(source, torch.bfloat16, [node]), value.dtype, [node])


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


def _sum_of_gradients_lost(module: torch.fx.GraphModule) -> None:
    for node in ops(module, "add"):
        first, second = node.args[:2]
        one, other, whole = value_of(first), value_of(second), value_of(node)
        if alike(one, other) and alike(one, whole) and first is not second:
            node.replace_all_uses_with(first)
            module.graph.erase_node(node)


def _sigmoid_rounded(module: torch.fx.GraphModule) -> None:
    for node in ops(module, "sigmoid", "tanh"):
        with module.graph.inserting_after(node):
            rounded = module.graph.call_function(aten.round.decimals, (node,), {"decimals": 3})
        rounded.meta = dict(node.meta)
        node.replace_all_uses_with(rounded, delete_user_cb=lambda user, made=rounded: user is not made)


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
        "results_exchanged",
        "the first two results of a region that look alike are exchanged",
        ("parity",),
        (INTERLEAVED, BORDERS, "suites/regions/test_nesting.py", MOE, LLAMA),
        calls(_results_exchanged),
    ),
    Mutant(
        "arguments_exchanged",
        "the first two inputs of a region that look alike are exchanged",
        ("parity",),
        (INTERLEAVED, NORM, BORDERS, LLAMA),
        calls(_arguments_exchanged),
    ),
    Mutant(
        "first_input_kept",
        "a region computes with the first input of its first call, for ever",
        ("parity", "borders"),
        (INTERLEAVED, NORM),
        calls(_first_input_kept),
    ),
    Mutant(
        "first_size_kept",
        "a region takes the sizes of its first call for those of all",
        ("caches", "parity", "compiles"),
        (SIZES,),
        calls(_first_sizes_kept),
        errors=("*",),
        lanes=("caches",),
    ),
    Mutant(
        "input_overwritten",
        "a region writes its result into an input that looks like it, which others may still read",
        ("parity",),
        (INTERLEAVED, EFFECTS, NORM),
        calls(_input_overwritten),
    ),
    Mutant(
        "result_memory_reused",
        "a region returns the same memory from every call",
        ("parity", "warm"),
        (INTERLEAVED, "suites/regions/test_nesting.py", "suites/regions/test_nested_compile_region.py", NORM),
        calls(_same_memory_each_time),
        needs=("family:call", "family:nested", "block:called several times", "region:feeds a region"),
    ),
    Mutant(
        "alias_broken",
        "a result of a region that is a view of its input is a copy instead",
        ("borders", "parity"),
        (BORDERS, STRIDES, EFFECTS, "suites/regions/test_lifetimes.py"),
        calls(_aliases_cloned),
    ),
    Mutant(
        "strides_changed",
        "matrices leave a region laid out by columns",
        ("borders", "parity"),
        (INTERLEAVED, STRIDES, BORDERS),
        results(_turned),
        errors=("*",),
    ),
    Mutant(
        "strides_not_restored",
        "strides that Inductor chose leave the region",
        ("borders", "parity", "compiles"),
        (STRIDES,),
        (Patch("compile_regions:restore_strides", lambda original: lambda call, actual: []),),
        errors=("*",),
        needs=("region",),
        lanes=("fast",),
    ),
    Mutant(
        "result_widened",
        "results of low precision leave a region as float32",
        ("borders", "parity", "compiles"),
        (NORM, BORDERS),
        results(_widened),
        errors=("*",),
    ),
    Mutant(
        "tail_of_loop_wrong",
        "the last element is off by one per cent where the number of elements is no multiple of four",
        ("parity",),
        (INTERLEAVED, SIZES, BORDERS),
        results(_tail_off),
    ),
    Mutant(
        "nan_lost",
        "a region returns zero where it should return NaN",
        ("parity",),
        (BORDERS,),
        results(_nan_lost),
        needs=("input:nonfinite",),
    ),
    Mutant(
        "own_draws",
        "a region draws its random numbers from a generator of its own",
        ("parity",),
        (EFFECTS,),
        calls(_own_draws),
        needs=("draws",),
    ),
    Mutant(
        "one_draw_more",
        "a region draws one number too many, so that all later draws are others",
        ("parity",),
        (EFFECTS,),
        calls(_one_draw_more),
        needs=("draws",),
    ),
    Mutant(
        "casts_lose_digits",
        "a cast between floating point types in a region passes through bfloat16",
        ("parity",),
        (NORM, BORDERS, "suites/models/test_add_rms_norm.py"),
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
        "matrix products in a region are of bfloat16 operands",
        ("parity",),
        (INTERLEAVED, LLAMA, MOE),
        (modules(_products_lose_digits),),
        needs=("inside:family:matmul",),
    ),
    Mutant(
        "wrong_dimension_reduced",
        "of square matrices a region reduces the other dimension",
        ("parity",),
        (BORDERS, NORM, "suites/regions/test_nesting.py"),
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
        (MOE, BORDERS),
        (modules(_accumulation_lost),),
        needs=("inside:family:scatter", "training + inside:family:index"),
    ),
    Mutant(
        "sigmoid_rounded",
        "sigmoid and tanh in a region have three digits",
        ("parity",),
        (LLAMA, NORM),
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
    Mutant(
        "sum_of_gradients_lost",
        "where two gradients meet in a region the second is dropped",
        ("parity",),
        (NORM, LLAMA, INTERLEAVED, MOE),
        (modules(_sum_of_gradients_lost, backward_only=True),),
    ),
)
