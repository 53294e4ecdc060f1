"""Backends that are right, though they do some things otherwise than the reference: nobody may complain about them."""

from __future__ import annotations

import dataclasses
import gc
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from pytest_regional import Capabilities, Support, unsupported
from pytest_regional._torch.fx_graphs import clone_graph
from tests.faults.planting import Mutant, Patch
from tests.faults.rewriting import Call, calls, cast, inherited, is_float, modules, ops, value_of

aten = torch.ops.aten


class Unshared(Capabilities):
    """Compiles every partition on its own."""

    @property
    def share_identical(self) -> Support:
        """Identical partitions are compiled once."""
        return unsupported("every partition is compiled on its own")


class Uncached(Capabilities):
    """Keeps nothing of whole graphs."""

    @property
    def outer_cache(self) -> Support:
        """The result of a whole Dynamo graph is kept on disk: the same program in another process is a hit."""
        return unsupported("there is none")

    @property
    def outer_cache_of_training(self) -> Support:
        """The result of a graph that trains is kept before any backward ran, with an ``autograd.Function``, too."""
        return unsupported("there is none")


# Plans


def _latest_first(original: Any) -> Any:
    """Of what can run, take what stands last in the program."""

    def topological(after: Mapping[int, Iterable[int]], blocked: dict[int, int]) -> Iterator[int]:
        ready = sorted(unit for unit, count in blocked.items() if not count)
        while ready:
            unit = ready.pop()
            yield unit
            for other in after[unit]:
                blocked[other] -= 1
                if not blocked[other]:
                    ready.append(other)

    return topological


def _as_scheduled(original: Any) -> Any:
    return lambda keys, before, after, runs: [sorted(run) for run in runs]


def _inputs_reversed(original: Any) -> Any:
    def call(self: Any, partition: Any, inputs: Any, results: Any) -> Any:
        inputs.reverse()
        return original(self, partition, inputs, results)

    return call


def _other_options(**changes: Any) -> Patch:
    def replaced(original: Any) -> Any:
        def compile_graph(gm: Any, example_inputs: Any, chosen: Any, **more: Any) -> Any:
            return original(gm, example_inputs, dataclasses.replace(chosen, **changes), **more)

        return compile_graph

    return Patch("dynamo_backend:compile_dynamo_graph", replaced)


# Graphs of regions


def _copied_first(original: Any) -> Any:
    def compile_module(request: Any, module: torch.fx.GraphModule) -> Any:
        return original(request, clone_graph(module))

    return compile_module


def _renamed(module: torch.fx.GraphModule) -> None:
    for number, node in enumerate(module.graph.nodes):
        if node.op == "call_function":
            node._rename(f"odd_{number}")


def _operands_exchanged(module: torch.fx.GraphModule) -> None:
    for node in ops(module, "add", "mul"):
        first, second, *rest = node.args
        # Eager takes the strides of the result from the first operand.
        if isinstance(second, torch.fx.Node) and not rest and not node.kwargs and _laid_out_alike(first, second):
            node.args = (second, first)


def _laid_out_alike(first: torch.fx.Node, second: torch.fx.Node) -> bool:
    one, other = value_of(first), value_of(second)
    return one.shape == other.shape and one.stride() == other.stride()


def _products_turned(module: torch.fx.GraphModule) -> None:
    """Compute a product as the transpose of the product of the transposes, which sums in another order."""
    for node in ops(module, "mm"):
        left, right = node.args
        with module.graph.inserting_before(node):
            turned = [_call(module, aten.t.default, (operand,), node) for operand in (right, left)]
            product = _call(module, aten.mm.default, tuple(turned), node)
            back = _call(module, aten.t.default, (product,), node)
            dense = _call(module, aten.clone.default, (back,), node, memory_format=torch.contiguous_format)
        _replace(module, node, dense)


def _sums_in_two_steps(module: torch.fx.GraphModule) -> None:
    """Sum over several dimensions one after the other."""
    for node in ops(module, "sum"):
        value = value_of(node.args[0])
        dims = node.args[1] if len(node.args) > 1 else ()
        if not is_float(value) or not isinstance(dims, (list, tuple)) or len(dims) < 2 or node.kwargs:
            continue
        keep, last = (node.args[2] if len(node.args) > 2 else False), node.args[0]
        with module.graph.inserting_before(node):
            for dim in sorted((dim % value.dim() for dim in dims), reverse=True):
                last = _call(module, aten.sum.dim_IntList, (last, [dim], keep), node)
        _replace(module, node, last)


def _wide_inside(module: torch.fx.GraphModule) -> None:
    """Compute pointwise ops of low precision in float32, as fused kernels do."""
    low = (torch.bfloat16, torch.float16)
    for node in ops(module, "add", "mul", "sub", "sigmoid", "tanh", "exp", "neg", "relu", "silu", "gelu"):
        value = value_of(node)
        sources = [source for source in node.all_input_nodes if isinstance(value_of(source), torch.Tensor)]
        if not is_float(value) or value.dtype not in low or any(value_of(s).dtype != value.dtype for s in sources):
            continue
        for source in sources:
            cast(source, torch.float32, [node])
        cast(node, value.dtype)


def _other_memory_inside(module: torch.fx.GraphModule) -> None:
    """Lay matrices that only pointwise ops and products read out by columns."""
    readers = {"add", "mul", "sub", "sigmoid", "tanh", "exp", "neg", "relu", "mm"}
    for node in ops(module, "mm", "add", "mul", "sub"):
        value = value_of(node)
        if not is_float(value) or value.dim() != 2 or not node.users:
            continue
        if not _stays_inside(node, readers):
            continue
        users = list(node.users)
        with module.graph.inserting_after(node):
            turned = _call(module, aten.t.default, (node,), node)
        with module.graph.inserting_after(turned):
            copy = _call(module, aten.clone.default, (turned,), node, memory_format=torch.contiguous_format)
        with module.graph.inserting_after(copy):
            back = _call(module, aten.t.default, (copy,), node)
        for user in users:
            user.replace_input_with(node, back)


def _stays_inside(node: torch.fx.Node, readers: set[str]) -> bool:
    """Return whether pointwise ops, which hand strides on, lead to products alone, which do not."""
    names = {user: getattr(user.target, "_opname", "") for user in node.users}
    return all(name in readers and (name == "mm" or _stays_inside(user, readers)) for user, name in names.items())


def _dead_op_added(module: torch.fx.GraphModule) -> None:
    first = next((node for node in module.graph.nodes if node.op == "call_function"), None)
    for placeholder in module.graph.find_nodes(op="placeholder")[:1]:
        if first is not None and is_float(value_of(placeholder)):
            with module.graph.inserting_before(first):
                _call(module, aten.neg.default, (placeholder,), first)


def _multiplied_by_one(module: torch.fx.GraphModule) -> None:
    for node in ops(module, "add", "mul"):
        value = value_of(node)
        if is_float(value):
            users = list(node.users)
            with module.graph.inserting_after(node):
                same = _call(module, aten.mul.Tensor, (node, 1.0), node)
            same.meta = dict(node.meta)
            for user in users:
                user.replace_input_with(node, same)


def _call(
    module: torch.fx.GraphModule, target: Any, args: tuple[Any, ...], like: torch.fx.Node, **kwargs: Any
) -> torch.fx.Node:
    made = module.graph.call_function(target, args, kwargs)
    made.meta = inherited(like.meta)
    return made


def _replace(module: torch.fx.GraphModule, node: torch.fx.Node, made: torch.fx.Node) -> None:
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    module.graph.erase_node(node)


# Calls


def _fresh_results(right: Call) -> Call:
    """Copy what is in memory of its own: the same values, strides and aliases, somewhere else."""

    def call(*arguments: Any) -> Sequence[Any]:
        made = right(*arguments)
        storages = [v.untyped_storage()._cdata for v in (*arguments, *made) if isinstance(v, torch.Tensor)]
        return [_moved(v) if is_float(v) and storages.count(v.untyped_storage()._cdata) == 1 else v for v in made]

    return call


def _moved(value: torch.Tensor) -> torch.Tensor:
    if value.requires_grad or value.storage_offset() or any(stride == 0 for stride in value.stride()):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)


def _tuples(right: Call) -> Call:
    return lambda *arguments: tuple(right(*arguments))


# Caches


def _salted(original: Any) -> Any:
    def details(*arguments: Any) -> Any:
        made = original(*arguments)
        return dataclasses.replace(made, state=made.state + " of a backend of its own")

    return details


def _padded(original: Any) -> Any:
    """Store entries with a line of their own behind them, which unpickling does not look at."""
    return lambda payload, **named: original(payload + b"\n# padding", **named)


def _newest_first(original: Any) -> Any:
    return lambda self, key: reversed(list(original(self, key)))


# Manners


def _chatty(original: Any) -> Any:
    def warn(graph: Any) -> Any:
        warnings.warn("this backend likes to talk", UserWarning, stacklevel=2)
        return original(graph)

    return warn


def _collecting(original: Any) -> Any:
    def compile_regions(*arguments: Any, **named: Any) -> Any:
        gc.collect()
        return original(*arguments, **named)

    return compile_regions


def _inside(change: Any) -> tuple[Patch, ...]:
    return (modules(change),)


def _one(target: str, replace: Any, **more: Any) -> tuple[Patch, ...]:
    return (Patch(target, replace, **more),)


BACKENDS = (
    Mutant(
        "latest_first",
        "independent ops and partitions run in the opposite order",
        patches=_one("partition:_topological", _latest_first),
    ),
    Mutant(
        "as_scheduled",
        "ops that could be in several partitions are in the first",
        patches=_one("partition:place_in_program_order", _as_scheduled),
    ),
    Mutant(
        "inputs_reversed",
        "regions take their inputs in the opposite order",
        patches=_one("extract:_Rewriter._call", _inputs_reversed),
    ),
    Mutant(
        "unshared",
        "identical partitions are compiled one by one, and it says so",
        patches=(_other_options(share_identical=False),),
        capabilities=Unshared,
    ),
    Mutant(
        "uncached",
        "nothing of whole graphs is kept, and it says so",
        patches=(_other_options(outer_cache=False),),
        capabilities=Uncached,
    ),
    Mutant(
        "min_cut",
        "the backward computes again what the min-cut partitioner says",
        patches=(_other_options(partitioner="min_cut"),),
    ),
    Mutant(
        "eager_on_error",
        "a region that does not compile would run eager, with a warning",
        patches=(_other_options(on_region_error="eager"),),
    ),
    Mutant(
        "copied_first",
        "the graph of a region is copied before it compiles",
        patches=_one("compile_regions:_compile_module", _copied_first),
    ),
    Mutant("renamed", "ops of a region have other names", patches=_inside(_renamed)),
    Mutant(
        "other_region_names",
        "compiled regions have other names in the graph",
        patches=(
            Patch("extract:NAME_PREFIX", lambda original: "piece_of_", counted=False),
            Patch("extract:_Rewriter._fresh_name", lambda original: original),
        ),
    ),
    Mutant(
        "operands_exchanged", "sums and products have their operands exchanged", patches=_inside(_operands_exchanged)
    ),
    Mutant("products_turned", "matrix products are computed transposed", patches=_inside(_products_turned)),
    Mutant("sums_in_two_steps", "sums over several dimensions are sums of sums", patches=_inside(_sums_in_two_steps)),
    Mutant("wide_inside", "pointwise ops of low precision are computed in float32", patches=_inside(_wide_inside)),
    Mutant(
        "other_memory_inside", "buffers inside a region are laid out by columns", patches=_inside(_other_memory_inside)
    ),
    Mutant("dead_op_added", "a harmless pass adds an op that nobody reads", patches=_inside(_dead_op_added)),
    Mutant("multiplied_by_one", "a harmless pass multiplies by one", patches=_inside(_multiplied_by_one)),
    Mutant(
        "fresh_results",
        "results of regions are copied where nobody else has their memory",
        patches=calls(_fresh_results),
    ),
    Mutant("tuples", "regions return tuples", patches=calls(_tuples)),
    Mutant(
        "salted_key",
        "the key of the cache holds the name of the backend",
        patches=_one("caching.outer:details_of", _salted),
    ),
    Mutant(
        "padded_entries",
        "entries of the cache have bytes behind them that mean nothing",
        patches=_one("caching.store:seal", _padded),
    ),
    Mutant(
        "newest_first",
        "entries of one key are tried in the opposite order",
        patches=_one("caching.store:EntryFiles.candidates", _newest_first),
    ),
    Mutant(
        "chatty", "every compile warns of nothing", patches=_one("regional_inductor:warn_of_unknown_regions", _chatty)
    ),
    Mutant(
        "collecting",
        "the garbage collector runs before regions compile",
        patches=_one("regional_inductor:compile_regions", _collecting),
    ),
)

ODD: dict[str, Mutant] = {mutant.name: mutant for mutant in BACKENDS}
