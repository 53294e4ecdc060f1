"""What many mutants need: change region keys, change a region's graph before it compiles, change its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from pytest_regional.reference import Partition, PartitionPlan, RegionKey
from tests.faults.planting import Patch

Keys = dict[torch.fx.Node, RegionKey]
Call = Callable[..., Sequence[Any]]

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def is_backward(nodes: Iterable[torch.fx.Node]) -> bool:
    """Return whether the nodes belong to a backward graph, by what AOTAutograd's partitioner notes on them."""
    return any(node.meta.get("partitioner_tag") == "is_backward" for node in nodes)


def region_keys(change: Callable[[torch.fx.Graph, Keys], Keys]) -> Patch:
    """Let the partitioner see other region keys than the annotations say."""
    return Patch("partition:read_region_keys", lambda original: lambda graph: change(graph, original(graph)))


def plans(change: Callable[[PartitionPlan], PartitionPlan]) -> Patch:
    """Change the plan of each graph."""

    def replaced(original: Callable[[torch.fx.Graph], Any]) -> Callable[[torch.fx.Graph], Any]:
        def plan(graph: torch.fx.Graph) -> Any:
            made = original(graph)
            return replace(made, partitions=change(made.partitions))

        return plan

    return Patch("regional_inductor:plan_in_order", replaced)


def dissolved(plan: PartitionPlan, left_eager: Callable[[Partition], bool]) -> PartitionPlan:
    """Return ``plan`` with some partitions as single eager ops."""
    steps: list[torch.fx.Node | Partition] = []
    for step in plan.steps:
        eager = isinstance(step, Partition) and left_eager(step)
        steps += step.nodes if eager else (step,)  # type: ignore[union-attr]
    return replace(plan, steps=tuple(steps))


def modules(change: Callable[[torch.fx.GraphModule], None], *, backward_only: bool = False) -> Patch:
    """Change the graph of every region before Inductor gets it."""

    def replaced(original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_module(request: Any, module: torch.fx.GraphModule) -> Any:
            if not backward_only or is_backward(request.partition.nodes):
                change(module)
                module.graph.lint()
                module.recompile()
            return original(request, module)

        return compile_module

    return Patch("compile_regions:_compile_module", replaced)


def calls(make: Callable[[Call], Call]) -> tuple[Patch, Patch]:
    """Change how every compiled region is called, loaded ones as well; ``make`` is given the right call."""

    def replaced(original: Callable[..., Call]) -> Callable[..., Call]:
        def as_graph_target(compiled: Call, name: str, *, plain: bool) -> Call:
            return disguised(make, original(compiled, name, plain=plain))

        return as_graph_target

    # A test loads what it compiled, or compiles only: each of the two is called by somebody.
    return Patch("compile_regions:as_graph_target", replaced), Patch(
        "caching.program:as_graph_target", replaced, counted=False
    )


def disguised(make: Callable[[Call], Call], right: Call) -> Call:
    """Return ``make(right)`` with all that FX and the cache look for on ``right``."""
    changed = make(right)

    def call(*arguments: Any) -> Sequence[Any]:
        return changed(*arguments)

    for name in ("__name__", "__qualname__", "__wrapped__", "makes_plain_values"):
        setattr(call, name, getattr(right, name))
    return call


def results(change: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Patch, Patch]:
    """Change every floating point tensor that a region returns."""

    def make(right: Call) -> Call:
        def call(*arguments: Any) -> Sequence[Any]:
            return tuple(change(value) if is_float(value) else value for value in right(*arguments))

        return call

    return calls(make)


def is_float(value: Any) -> bool:
    """Return whether ``value`` is a tensor of floating point numbers."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def alike(one: Any, other: Any) -> bool:
    """Return whether two values are tensors that only their numbers tell apart."""
    return (
        isinstance(one, torch.Tensor)
        and isinstance(other, torch.Tensor)
        and (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())
    )


def twins(values: Sequence[Any]) -> tuple[int, int] | None:
    """Return the numbers of the first two values that are alike."""
    for j, other in enumerate(values):
        for i in range(j):
            if values[i] is not other and alike(values[i], other):
                return i, j
    return None


def exchanged(values: Sequence[Any]) -> list[Any]:
    """Return ``values`` with the first two that are alike exchanged."""
    changed, found = list(values), twins(values)
    if found:
        i, j = found
        changed[i], changed[j] = changed[j], changed[i]
    return changed


def ops(module: torch.fx.GraphModule | torch.fx.Graph, *names: str) -> list[torch.fx.Node]:
    """Return the calls of ATen operators, by the names of their packets."""
    graph = module if isinstance(module, torch.fx.Graph) else module.graph
    return [node for node in graph.nodes if node.op == "call_function" and op_name(node) in names]


def op_name(node: torch.fx.Node) -> str:
    """Return the name of an operator without namespace and overload; empty for other targets."""
    packet = getattr(node.target, "overloadpacket", None)
    return str(getattr(packet, "__name__", ""))


def value_of(node: Any) -> Any:
    """Return the fake value of ``node``."""
    return node.meta.get("val") if isinstance(node, torch.fx.Node) else None


def cast(node: torch.fx.Node, dtype: torch.dtype, users: Iterable[torch.fx.Node] | None = None) -> torch.fx.Node:
    """Insert a cast behind ``node``, for all of its users, or for some, whose region it then belongs to."""
    readers = list(node.users if users is None else users)
    neighbour = node if users is None else readers[0]
    with node.graph.inserting_after(node):
        made = node.graph.call_function(torch.ops.aten._to_copy.default, (node,), {"dtype": dtype})
    value = value_of(node)
    made.meta = {**inherited(neighbour.meta), **({} if value is None else {"val": value.to(dtype)})}
    for user in readers:
        user.replace_input_with(node, made)
    return made


def inherited(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a node made of another keeps: the annotation, and the line of the program."""
    return {name: meta[name] for name in ("custom", "stack_trace", "partitioner_tag") if name in meta}
