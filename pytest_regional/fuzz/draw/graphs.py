"""Random programs from seeds or bytes; FX graphs of ATen operators, from codes; and passes that change no value."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pytest_regional.fuzz.draw.encoding import (
    SCOPES,
    EncodedArgument,
    EncodedPlan,
    EncodedProgram,
    EncodedStep,
    Options,
    program_of,
    with_order,
)
from pytest_regional.fuzz.graph_capture import needs_dynamo
from pytest_regional.fuzz.model.arguments import LAYOUTS, TensorInput
from pytest_regional.fuzz.model.building import check_buildable
from pytest_regional.fuzz.model.claims import restricted
from pytest_regional.fuzz.model.program import Program, Region, Scope
from pytest_regional.fuzz.operators.table import families
from pytest_regional.harness.parity.inputs import fresh_inputs

_aten = torch.ops.aten

#: Operators on matrices that keep elements between -1 and 1, by how many operands they take.
_UNARY = (_aten.sin.default, _aten.neg.default, _aten.tanh.default, _aten.t.default, _aten.clone.default)
_BINARY = (_aten.mul.Tensor, _aten.maximum.default, _aten.minimum.default)

REGIONS = (None, "a", "b", "c", "d")
SIZE = 4


@dataclass(frozen=True)
class EncodedNode:
    """One node, as integers: what it computes, the two values it reads counted backwards, and its region."""

    operator: int = 0
    left: int = 0
    right: int = 0
    region: int = 0


@dataclass(frozen=True)
class AnnotatedGraph:
    """A graph whose nodes carry regions as AOTAutograd would hand them over.

    Attributes:
        module: the graph module, of two matrices.
        edges: pairs of nodes: the first is to run before the second, beyond what values imply.
    """

    module: torch.fx.GraphModule
    edges: tuple[tuple[torch.fx.Node, torch.fx.Node], ...] = ()

    def inputs(self, seed: int = 0) -> tuple[torch.Tensor, ...]:
        """Return inputs for the module."""
        generator = torch.Generator().manual_seed(seed)
        return tuple(torch.rand(SIZE, SIZE, generator=generator) * 2 - 1 for _ in range(2))

    def __repr__(self) -> str:
        edges = [(before.name, after.name) for before, after in self.edges]
        nodes = [f"{node.format_node()}  # {region_of(node)}" for node in self.module.graph.nodes]
        return "\n".join(["AnnotatedGraph:", *nodes, f"edges: {edges}"])


def region_of(node: torch.fx.Node) -> str | None:
    """Return the id of the region that ``node`` is in."""
    mark = node.meta.get("custom", {}).get("compile_with_inductor", {})
    name: str | None = mark.get("inductor_region")
    return name


def graph_of(codes: Sequence[EncodedNode], edges: Sequence[tuple[int, int]] = (), regions: int = 2) -> AnnotatedGraph:
    """Return the graph that codes describe.

    Args:
        codes: its nodes.
        edges: pairs of numbers of nodes; the earlier of the two runs first.
        regions: how many different regions there may be.
    """
    graph = torch.fx.Graph()
    values = [graph.placeholder("x"), graph.placeholder("y")]
    for value in values:
        value.meta["val"] = torch.empty(SIZE, SIZE, device="meta")
    operators = (*_BINARY, *_UNARY)
    for code in codes:
        operator = operators[code.operator % len(operators)]
        left, right = values[-1 - code.left % len(values)], values[-1 - code.right % len(values)]
        node = graph.call_function(operator, (left, right) if operator in _BINARY else (left,))
        node.meta["val"] = operator(*(operand.meta["val"] for operand in node.args))
        name = REGIONS[code.region % (min(regions, len(REGIONS) - 1) + 1)]
        if name is not None:
            node.meta["custom"] = {"compile_with_inductor": {"inductor_region": name}}
        values.append(node)
    nodes = values[2:]
    graph.output(tuple(node for node in nodes if not node.users))
    pairs = [sorted((one % len(nodes), other % len(nodes))) for one, other in edges]
    distinct = dict.fromkeys((nodes[one], nodes[other]) for one, other in pairs if one != other)
    return AnnotatedGraph(torch.fx.GraphModule({}, graph), tuple(distinct))


@dataclass(frozen=True)
class NamedPass:
    """A graph pass that changes a graph and no value, with a uuid so that caches can tell it.

    Attributes:
        name: what it does.
        change: changes a graph in place.
    """

    name: str
    change: Callable[[torch.fx.Graph], None]

    def __call__(self, graph: Any) -> None:
        """Change ``graph``, a graph or a graph module."""
        self.change(graph.graph if isinstance(graph, torch.fx.GraphModule) else graph)

    def uuid(self) -> str:
        """Return what stands for it in a cache key."""
        return f"pytest_regional.fuzz.draw.graphs:{self.name}"

    def __repr__(self) -> str:
        return f"<pass {self.name}>"


def _commute(graph: torch.fx.Graph) -> None:
    for target in (_aten.add.Tensor, _aten.mul.Tensor):
        for node in graph.find_nodes(op="call_function", target=target):
            first, second, *others = node.args
            # A number stands second in these operators, and no other argument may be lost.
            if isinstance(first, torch.fx.Node) and isinstance(second, torch.fx.Node) and not (others or node.kwargs):
                node.args = (second, first)


def _negate_twice(graph: torch.fx.Graph) -> None:
    for target in (_aten.sin.default, _aten.tanh.default):
        for node in graph.find_nodes(op="call_function", target=target)[:1]:
            users = list(node.users)
            with graph.inserting_after(node):
                first = graph.call_function(_aten.neg.default, (node,))
            with graph.inserting_after(first):
                second = graph.call_function(_aten.neg.default, (first,))
            first.meta, second.meta = dict(node.meta), dict(node.meta)
            for user in users:
                user.replace_input_with(node, second)


def _note(graph: torch.fx.Graph) -> None:
    for node in graph.nodes:
        node.meta.setdefault("notes", []).append("seen")


#: Sound passes, the simplest first.
PASSES = (
    NamedPass("nothing", lambda graph: None),
    NamedPass("note", _note),
    NamedPass("commute", _commute),
    NamedPass("negate twice", _negate_twice),
)


#: Layouts whose tensors can stand in for each other as far as operators go; an expanded one cannot be written to.
_FREE: tuple[Any, ...] = tuple(
    layout for layout in LAYOUTS if layout == "expanded" or not layout.startswith("channels_last")
)


def fresh_program_inputs(program: Program, device: Any, seed: int, layout: int, size: int) -> tuple[torch.Tensor, ...]:
    """Return inputs of ``program`` drawn with another seed, laid out and sized otherwise where it runs with them."""
    laid_out = [
        replace(argument, layout=_FREE[layout % len(_FREE)])
        if layout and argument.layout in _FREE and argument.alias_of is None
        else argument
        for argument in program.arguments
    ]
    for changed in ([_resized(argument, size) for argument in laid_out], laid_out):
        with contextlib.suppress(RuntimeError, ValueError):
            other = replace(program, arguments=tuple(changed))
            check_buildable(other)
            return other.inputs(device, seed)
    return program.inputs(device, seed)


def _resized(argument: TensorInput, size: int) -> TensorInput:
    # A dynamic size never becomes 0 or 1, which compilers take for constants; equal sizes stay equal.
    shape = tuple(
        2 + (old + size - 2) % 14 if dim in argument.dynamic else old for dim, old in enumerate(argument.shape)
    )
    return replace(argument, shape=shape)


def fresh_arguments(
    inputs: tuple[Any, ...], dynamic: Mapping[int, Collection[int]], seed: int, layout: int, size: int
) -> tuple[Any, ...]:
    """Return arguments like ``inputs``, tensors with other values, and other sizes in the ``dynamic`` dimensions."""
    fresh = list(fresh_inputs(inputs, seed))
    for position, value in enumerate(fresh):
        if not isinstance(value, torch.Tensor):
            continue
        made, dims = value.detach(), dynamic.get(position, ())
        for dim in dims:
            wanted = 2 + (made.shape[dim] + size - 2) % 14
            rows = torch.arange(wanted, device=made.device) % made.shape[dim]
            made = made.index_select(dim, rows)
        if layout % 2 and made.dim() and made.is_contiguous():
            made = torch.stack([made, made], -1)[..., 0]
        if dims or made.stride() != value.stride():
            fresh[position] = made.requires_grad_(value.requires_grad)
    return tuple(fresh)


#: How many bytes a code is drawn as. One draw of bytes costs Hypothesis a tenth of as many draws of integers.
ARGUMENT_BYTES, STEP_BYTES, PLAN_BYTES = 9, 11, 18


def random_program(source: random.Random, *, max_steps: int = 12, options: Options | None = None) -> Program:
    """Return a program drawn from ``source``; the same for the same state."""
    return program_of(random_encoding(source, max_steps=max_steps), options)


def random_programs(seed: int, *, max_steps: int = 12, options: Options | None = None) -> Iterator[Program]:
    """Yield programs without end; the same for the same seed."""
    source = random.Random(seed)
    while True:
        yield random_program(source, max_steps=max_steps, options=options)


def random_encoding(source: random.Random, *, max_steps: int = 12) -> EncodedProgram:
    """Return an encoding drawn from ``source``."""

    def steps(most: int) -> tuple[EncodedStep, ...]:
        return tuple(decode_step(source.randbytes(STEP_BYTES)) for _ in range(source.randint(1, most)))

    arguments = tuple(decode_argument(source.randbytes(ARGUMENT_BYTES)) for _ in range(source.randint(1, 5)))
    blocks = tuple(steps(3) for _ in range(source.choice((0, 1, 2))))
    off = frozenset(name for name in families() if source.random() < 0.5) if source.random() < 0.5 else frozenset()
    return EncodedProgram(arguments, steps(max_steps), blocks, decode_plan(source.randbytes(PLAN_BYTES), off))


def decode_argument(drawn: bytes) -> EncodedArgument:
    """Return the code that bytes describe."""
    return EncodedArgument(*drawn)


def decode_step(drawn: bytes) -> EncodedStep:
    """Return the code that bytes describe; the operator has two of them."""
    high, low, a, b, c, d, first, second, third, scope, returned = drawn
    return EncodedStep(256 * high + low, (a, b, c, d), (first, second, third), scope, returned)


def decode_plan(drawn: bytes, off: frozenset[str]) -> EncodedPlan:
    """Return the code that bytes describe, and the families that are off."""
    shapes, dtype, a, b, c, training, dynamic, nonfinite, order, duplicate, *wide = drawn
    variation, one, two, three = (256 * high + low for high, low in zip(wide[::2], wide[1::2], strict=True))
    return EncodedPlan(
        shapes, dtype, (a, b, c), training, dynamic, nonfinite, order, duplicate, variation, (one, two, three), off
    )


#: What a statement is annotated with, the contexts that set state left out.
_REGIONS: tuple[Scope, ...] = tuple(
    dict.fromkeys(tuple(context for context in scope if isinstance(context, Region)) for scope in SCOPES)
)

#: So many graphs come of a drawn program in mode ``aten``: to draw one takes as long as to check several.
VARIANTS = 16


def with_other_annotations(
    programs: Iterator[Program], times: int, seed: int, without: frozenset[str] = frozenset()
) -> Iterator[Program]:
    """Yield each of ``programs``, and behind it the same with other annotations, ``times`` in all.

    Args:
        programs: what to vary; a program that calls blocks, which have annotations of their own, is not varied, and
            neither is one that only Dynamo captures.
        times: how many programs come of one.
        seed: what the annotations are drawn from.
        without: capabilities that no program may need.
    """
    chance = random.Random(f"annotations {seed}")
    for program in programs:
        yield program
        if "regions" in without or needs_dynamo(program) or any(step.blocks for step in program.steps):
            continue
        for _ in range(times - 1):
            yield reannotated(program, chance, without)


def reannotated(program: Program, chance: random.Random, without: frozenset[str] = frozenset()) -> Program:
    """Return ``program`` with each statement in one of three annotations or in none; one in four has an order."""
    drawn = [chance.choice(_REGIONS) for _ in range(3)]
    steps = tuple(replace(step, scope=(*step.contexts, *chance.choice((*drawn, ())))) for step in program.steps)
    varied = restricted(program.with_steps(steps), without)
    orders = chance.randrange(4) == 0 and "region_order" not in without
    return with_order(varied) if orders else varied
