"""Faults around the regions: what the whole graph returns, writes, draws, and hands from forward to backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from pytest_regional.reference.effects import RANDOM
from pytest_regional.reference.regions import freeze
from tests.faults.planting import Mutant, Patch
from tests.faults.rewriting import alike, is_backward, is_float, ops, value_of

EFFECTS = "suites/regions/test_effects.py"
BOUNDARIES = "suites/regions/test_values_across_borders.py"
HITS = "suites/caching/test_hits.py"
RETAINED = "suites/regions/test_retained_backwards.py"
Compiled = Callable[..., Any]


# Around the callable that the backend returns


def _mutation_lost(compiled: Compiled) -> Compiled:
    def call(*arguments: Any) -> Any:
        tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
        before = [(value, value._version, value.detach().clone()) for value in tensors]
        made = compiled(*arguments)
        for value, version, copy in before:
            if value._version != version:
                value.data.copy_(copy)
        return made

    return call


def _outputs_detached(compiled: Compiled) -> Compiled:
    def call(*arguments: Any) -> Any:
        made = list(compiled(*arguments))
        return [value.detach() if i == 0 and is_float(value) else value for i, value in enumerate(made)]

    return call


def _outputs_cloned(compiled: Compiled) -> Compiled:
    def call(*arguments: Any) -> Any:
        given = {value.untyped_storage()._cdata for value in arguments if isinstance(value, torch.Tensor)}
        return [_clone(value) if _lies_in(value, given) else value for value in compiled(*arguments)]

    return call


def _outputs_pooled(compiled: Compiled) -> Compiled:
    """Hand each output out in memory that is used again by the next call, as a pool of buffers does."""
    pool: dict[tuple[Any, ...], torch.Tensor] = {}

    def call(*arguments: Any) -> Any:
        given = {value.untyped_storage()._cdata for value in arguments if isinstance(value, torch.Tensor)}
        return [
            _pooled(pool, place, value) if is_float(value) and not _lies_in(value, given) else value
            for place, value in enumerate(compiled(*arguments))
        ]

    return call


def _compiled_at_each_call(compiled: Compiled) -> Compiled:
    """Have Dynamo forget the program with each call, as guards do that never hold."""

    def call(*arguments: Any) -> Any:
        torch.compiler.reset()
        return compiled(*arguments)

    return call


def _pooled(pool: dict[tuple[Any, ...], torch.Tensor], place: int, value: torch.Tensor) -> torch.Tensor:
    if value.requires_grad or value._is_view():
        return value
    kept = pool.setdefault((place, value.shape, value.stride(), value.dtype), value)
    if kept is not value:
        kept.copy_(value)
    return kept


def _clone(value: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return made.copy_(value)


def _lies_in(value: Any, storages: set[int]) -> bool:
    return isinstance(value, torch.Tensor) and value.untyped_storage()._cdata in storages


# Order of effects


def _draws_unordered(original: Any) -> Any:
    def chains(nodes: Any, effects: Any) -> Any:
        return original(nodes, {node: found - {RANDOM} for node, found in effects.items()})

    return chains


def _view_writes_lost(original: Any) -> Any:
    def plan(graph: torch.fx.Graph) -> Any:
        for node in ops(graph, "slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter"):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        return original(graph)

    return plan


def _sum_of_gradients_lost(original: Any) -> Any:
    """Drop what autograd added: such an addition has no annotation, and stands between the regions of a backward."""

    def plan(graph: torch.fx.Graph) -> Any:
        for node in ops(graph, "add") if is_backward(graph.nodes) else ():
            first, second = node.args[:2]
            if alike(value_of(first), value_of(second)) and alike(value_of(first), value_of(node)):
                node.replace_all_uses_with(first)
                graph.erase_node(node)
        return original(graph)

    return plan


def _without_unused_draws(original: Any) -> Any:
    """Eliminate as dead code what draws and is not used."""

    def pick(graph: torch.fx.Graph) -> int:
        for node in reversed(graph.nodes):
            if node.op == "call_function" and not node.users and not node.is_impure(impure_random=False):
                graph.erase_node(node)
        return original(graph)

    return pick


def _merging_across_boundaries(original: Any) -> Any:
    """Merge equal ops whatever region they are in, as PyTorch's min-cut partitioner does."""

    def pick(graph: torch.fx.Graph) -> int:
        first: dict[Any, torch.fx.Node] = {}
        for node in list(graph.nodes):
            if node.op != "call_function" or not hasattr(node.target, "_schema") or not _is_pure(node):
                continue
            earlier = first.setdefault((node.target, freeze(node.args), freeze(node.kwargs)), node)
            if earlier is not node and earlier.meta.get("partitioner_tag") == node.meta.get("partitioner_tag"):
                node.replace_all_uses_with(earlier)
                graph.erase_node(node)
        return original(graph)

    return pick


def _is_pure(node: torch.fx.Node) -> bool:
    target: Any = node.target
    random = torch.Tag.nondeterministic_seeded in target.tags
    views = any(result.alias_info is not None for result in target._schema.returns)
    new = target._opname.startswith(("empty", "new_empty"))
    return not (random or views or new or target._schema.is_mutable or not node.users)


def halve_unseen(value: torch.Tensor) -> None:
    """Write to ``value`` as generated code does: autograd, which counts writes, sees none."""
    value.data.mul_(0.5)


torch.fx.node.has_side_effect(halve_unseen)


def _saved_overwritten(original: Any) -> Any:
    """Let a backward write over what the forward saved for it alone, as if that were donated to it."""

    def plan(graph: torch.fx.Graph) -> Any:
        saved = [node for node in graph.find_nodes(op="placeholder") if _is_saved(node)]
        with graph.inserting_before(graph.output_node()):
            for node in saved if is_backward(graph.nodes) else ():
                graph.call_function(halve_unseen, (node,)).meta = {"partitioner_tag": "is_backward"}
        return original(graph)

    return plan


def _is_saved(node: torch.fx.Node) -> bool:
    """Tell whether only the backward holds the value: it is no input of the program, and no gradient."""
    return is_float(value_of(node)) and not node.name.startswith(("primals", "tangents"))


# Symbols, boxes, threads


def _plain_arguments(gm: torch.fx.GraphModule) -> None:
    gm.recompile()


FAULTS = (
    Mutant(
        "mutation_lost",
        "what the program writes to its inputs is undone",
        ("parity",),
        (EFFECTS, HITS),
        wrap=_mutation_lost,
        needs=("writes",),
    ),
    Mutant(
        "output_detached",
        "the first output of a graph lets no gradient through",
        ("parity",),
        ("suites/regions/test_interleaved.py", "suites/models/test_norm_residual_silu.py"),
        wrap=_outputs_detached,
    ),
    Mutant(
        "output_no_alias",
        "an output that is a view of an input is a copy",
        ("parity",),
        (EFFECTS, HITS, "suites/regions/test_values_across_borders.py"),
        wrap=_outputs_cloned,
    ),
    Mutant(
        "outputs_pooled",
        "what a graph returns lies in memory that its next call writes to",
        ("results_kept",),
        (BOUNDARIES,),
        wrap=_outputs_pooled,
    ),
    Mutant(
        "compiled_at_each_call",
        "each call of the program compiles it again",
        (),  # what a program computes is right
        (BOUNDARIES,),
        wrap=_compiled_at_each_call,
    ),
    Mutant(
        "saved_overwritten",
        "a backward writes over what the forward saved, so that it cannot be run again",
        ("retained_backward",),
        (RETAINED,),
        (Patch("regional_inductor:plan_in_order", _saved_overwritten),),
        needs=("training + family:pointwise", "training + family:norm"),
    ),
    Mutant(
        "effects_unordered",
        "no order but that of values is kept between ops",
        ("parity", "plan"),
        (EFFECTS,),
        (Patch("partition:order_edges", lambda original: lambda graph: []),),
        needs=("writes", "draws", "family:custom"),
    ),
    Mutant(
        "draws_unordered",
        "random draws of a region are gathered past draws outside it",
        ("parity", "plan"),
        (EFFECTS,),
        (Patch("effects:_chains", _draws_unordered),),
        needs=("draws",),
    ),
    Mutant(
        "view_writes_lost",
        "what is written through a view does not reach the tensor that it is a view of",
        ("parity",),
        (EFFECTS,),
        (Patch("regional_inductor:plan_in_order", _view_writes_lost),),
        needs=("writes",),
    ),
    Mutant(
        "sum_of_gradients_lost",
        "where two gradients meet the second is dropped",
        ("parity",),
        (BOUNDARIES,),
        (Patch("regional_inductor:plan_in_order", _sum_of_gradients_lost),),
        needs=("training + region",),
    ),
    Mutant(
        "draws_repeated_in_backward",
        "the backward draws once more what the forward saved",
        ("parity",),
        ("suites/regions/test_backward_draws.py",),
        (Patch("gradients:drop_repeated", lambda original: lambda forward, backward: 0),),
        needs=("training + draws",),
    ),
    Mutant(
        "unused_draws_dropped",
        "a draw that nobody reads is dead code",
        (),  # programs that draw for nothing are not made: AOTAutograd drops most such draws on every backend
        (EFFECTS,),
        (Patch("gradients:pick_from_unused_tuples", _without_unused_draws),),
    ),
    Mutant(
        "unused_tuples_unknown",
        "an unused dropout breaks the split into forward and backward",
        (),  # programs that draw for nothing are not made
        (EFFECTS,),
        (Patch("gradients:pick_from_unused_tuples", lambda original: lambda graph: 0),),
        errors=("*",),
    ),
    Mutant(
        "merged_across_boundaries",
        "equal ops inside and outside of a region are merged",
        ("plan",),
        ("suites/regions/test_common_subexpressions.py",),
        (Patch("gradients:pick_from_unused_tuples", _merging_across_boundaries),),
    ),
    Mutant(
        "symbols_missing",
        "a region whose inputs are of size 2*n is not told n",
        ("compiles",),
        ("suites/regions/test_symbolic_sizes.py", "suites/regions/test_values_across_borders.py"),
        (Patch("regional_inductor:pass_missing_symbols", lambda original: lambda gm, regions: None),),
        errors=("*",),
        needs=tuple(
            f"input:dynamic + region + op:{name}" for name in ("cat_itself", "tile", "flatten", "reshape", "view")
        ),
        modes=("emulated",),
    ),
    Mutant(
        "unboxed",
        "compiled graphs take their inputs one by one, which keeps them alive",
        (),
        ("suites/regions/test_lifetimes.py", "suites/regions/test_nesting.py"),
        (Patch("regional_inductor:use_boxed_codegen", lambda original: _plain_arguments),),
        errors=("*",),
    ),
)
