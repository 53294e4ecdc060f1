"""What programs ask of a backend, by capability; and steps run in eager: their results, their memory, what is live.

:func:`needs_of` says what a program needs; :func:`restricted` takes annotations away that a backend has no use for. The
generator itself leaves out operators and writes (:class:`~pytest_regional.fuzz.model.building.Builder`).
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_regional._torch.tracing import storage_key
from pytest_regional.fuzz.model.program import Block, Context, Parameter, Program, Region, Scope, Step
from pytest_regional.fuzz.model.source import defined, make_inputs
from pytest_regional.fuzz.operators.operator import OPERAND_NAMES, Operator
from pytest_regional.fuzz.operators.table import operator_named

if TYPE_CHECKING:
    import torch

    from pytest_regional.backends.spec import BackendSpec


#: The capabilities that a program may need; the others are about caches, counters and passes.
DRAWN = (
    "aliasing",
    "backward",
    "channels_last",
    "custom_ops",
    "distinct_region_configs",
    "dynamic_shapes",
    "higher_order_operators",
    "interleaved_regions",
    "mutation",
    "nested_regions",
    "region_configs",
    "region_ids",
    "region_order",
    "regions",
    "rng",
)

#: Families whose operators are higher-order ones in a graph.
HIGHER_ORDER = ("checkpoint", "nested", "cond", "loop", "transform")


def disclaimed(spec: BackendSpec) -> frozenset[str]:
    """Return the capabilities that programs may need and the backend disclaims."""
    return frozenset(name for name in DRAWN if not spec.supports(name))


def needs_of_operator(operator: Operator) -> frozenset[str]:
    """Return what ``operator`` needs wherever it stands."""
    needs = set()
    if operator.uses_rng:
        needs.add("rng")
    if operator.family in HIGHER_ORDER or operator.name.startswith("function_"):
        needs.add("higher_order_operators")
    elif operator.family == "custom":
        needs.add("custom_ops")
    if operator.name == "channels_last":
        needs.add("channels_last")
    return frozenset(needs)


def needs_of(program: Program) -> frozenset[str]:
    """Return the capabilities that a backend has to claim for ``program`` to be its business."""
    return frozenset(_needs(program))


def _needs(program: Program) -> Iterator[str]:
    for argument in program.arguments:
        if argument.requires_grad and program.training:
            yield "backward"
        if argument.layout.startswith("channels_last"):
            yield "channels_last"
        if argument.alias_of is not None:
            yield "aliasing"
        if argument.dynamic or program.dynamic:
            yield "dynamic_shapes"
    for step in program.all_steps():
        yield from needs_of_operator(operator_named(step.operator))
    memory = Memory(program)
    if memory.inputs_written:
        yield "mutation"
    if memory.outputs_shared:
        yield "aliasing"
    if not program.regions:
        return
    yield "regions"
    keys = list(_keys(program))
    if len({name for name, _ in keys}) > 1:
        yield "region_ids"
    if any(region.configs for region in program.regions) or any(configs for _, configs in keys):
        yield "region_configs"
    if len(set(keys)) > len({name for name, _ in keys}):
        yield "distinct_region_configs"
    if interleaved(keys):
        yield "interleaved_regions"
    if any(region.after for region in program.regions):
        yield "region_order"
    if any(_is_nested(program, step) for step in program.steps):
        yield "nested_regions"


# Regions in the order in which they run

Key: TypeAlias = "tuple[str | int | None, tuple[tuple[str, Parameter], ...]]"
"""Id and settings of a region, as they hold: settings of an outer annotation stay unless the inner one names them."""


def _key(regions: tuple[Region, ...]) -> Key | None:
    if not regions:
        return None
    configs: dict[str, Parameter] = {}
    for region in regions:
        configs.update(region.configs)
    return regions[-1].name, tuple(sorted(configs.items(), key=lambda item: item[0]))


def _keys(program: Program) -> Iterator[Key]:
    """Yield the regions of all operators in the order in which they run, bodies of blocks included."""
    for step in program.steps:
        inner = [one for index in step.blocks for one in program.blocks[index].steps]
        for regions in [(*step.regions, *one.regions) for one in inner] or [step.regions]:
            key = _key(regions)
            if key is not None:
                yield key


def interleaved(regions: Iterable[Hashable]) -> bool:
    """Tell whether a region is left for another one and entered again: they may wait for each other."""
    left = set()
    for before, after in itertools.pairwise(regions):
        if before != after:
            left.add(before)
            if after in left:
                return True
    return False


def _is_nested(program: Program, step: Step) -> bool:
    """Tell whether ``step`` is a higher-order operator with a region around it or in its body."""
    if operator_named(step.operator).family not in HIGHER_ORDER:
        return False
    return bool(step.regions) or any(one.regions for index in step.blocks for one in program.blocks[index].steps)


# Less of them


def restricted(program: Program, without: frozenset[str]) -> Program:
    """Return ``program`` with fewer annotations, so that none needs a capability in ``without``."""
    if not program.regions:
        return program
    if "regions" in without:
        return _with_regions(program, lambda step: ())
    if "nested_regions" in without:
        called = {index for step in program.steps if _is_nested(program, step) for index in step.blocks}
        blocks = tuple(
            replace(block, steps=tuple(_with(step, ()) for step in block.steps)) if index in called else block
            for index, block in enumerate(program.blocks)
        )
        steps = tuple(_with(step, ()) if _is_nested(program, step) else step for step in program.steps)
        program = replace(program, steps=steps, blocks=blocks)
    if "region_configs" in without:
        program = _with_regions(program, lambda step: tuple(replace(one, configs=()) for one in step.regions))
    if "region_ids" in without and program.regions:
        only = program.regions[0].name
        program = _with_regions(program, lambda step: tuple(replace(one, name=only) for one in step.regions))
    if without & {"distinct_region_configs", "interleaved_regions"}:
        program = _one_after_the_other(program, without)
    return program


def _one_after_the_other(program: Program, without: frozenset[str]) -> Program:
    """Return ``program`` with one annotation around a step, none in blocks, and what interleaves unannotated."""
    configs: dict[str | int | None, tuple[tuple[str, Parameter], ...]] = {}
    left: set[Key] = set()
    before: Key | None = None
    steps = []
    for step in program.steps:
        key = _key(step.regions)
        if key is not None and "distinct_region_configs" in without:
            key = key[0], configs.setdefault(*key)
        if key in left and "interleaved_regions" in without:
            key = None
        if key is not None:
            left |= {before} if before not in (None, key) else set()
            before = key
        steps.append(_with(step, () if key is None else (Region(*key),)))
    blocks = tuple(replace(block, steps=tuple(_with(step, ()) for step in block.steps)) for block in program.blocks)
    return replace(program, steps=tuple(filter(_says_something, steps)), blocks=blocks)


def _with_regions(program: Program, chosen: Callable[[Step], tuple[Region, ...]]) -> Program:
    """Return ``program`` with other annotations around its steps, and around those of its blocks."""

    def changed(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        return tuple(filter(_says_something, (_with(step, chosen(step)) for step in steps)))

    blocks = tuple(replace(block, steps=changed(block.steps)) for block in program.blocks)
    return replace(program, steps=changed(program.steps), blocks=blocks)


def _with(step: Step, regions: tuple[Region, ...]) -> Step:
    return replace(step, scope=(*step.contexts, *regions))


def _says_something(step: Step) -> bool:
    """Tell whether ``step`` is more than a statement of nothing without a region around it."""
    return bool(step.operands or step.results or step.regions)


#: What eager raises on small valid tensors that do not fit an operator.
REFUSALS = (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError)


def evaluate(
    operator: Operator, step: Step, operands: Sequence[torch.Tensor], blocks: Sequence[Callable[..., Any]]
) -> list[torch.Tensor]:
    """Return the results of one step in eager."""
    parameters = dict(step.parameters)
    if operator.evaluate is not None:
        made = operator.evaluate(*operands, *blocks, **parameters)
    else:
        names = defined(operator.needs)
        for name, value in parameters.items():
            is_dtype = name == "dtype" and value is not None
            names[name] = getattr(names["torch"], str(value)) if is_dtype else value
        names.update(zip(OPERAND_NAMES, operands, strict=False))
        names.update(zip(("block", "other"), blocks, strict=False))
        made = eval(operator.code, names)
    if not operator.results:
        return []
    return list(made) if operator.results > 1 else [made]


def makes_at_most(
    limit: int,
    operator: Operator,
    step: Step,
    operands: Sequence[torch.Tensor],
    blocks: Sequence[Callable[..., Any]],
) -> bool:
    """Tell, before memory is taken for them, whether the results of one step have ``limit`` elements at most."""
    numbers = [number for _, value in step.parameters for number in (value if isinstance(value, tuple) else (value,))]
    sizes = [max(abs(number), 1) for number in numbers if isinstance(number, int)]
    # Nothing is larger than all operands broadcast against each other and repeated, a square of a size, and a bit more.
    if 16 * math.prod(max(tensor.numel(), 1) for tensor in operands) * math.prod(sizes) ** 2 <= limit:
        return True
    if operator.unbacked or operator.calls:
        # What depends on data cannot be asked of shapes alone; blocks work element by element.
        return bool(8 * sum(tensor.numel() for tensor in operands) <= limit)
    shapes = [tensor.new_empty_strided(tensor.shape, tensor.stride(), device="meta") for tensor in operands]
    try:
        made = evaluate(operator, step, shapes, blocks)
    except REFUSALS:
        return False
    return bool(sum(tensor.numel() for tensor in made) <= limit)


def function_of_block(block: Block) -> Callable[..., Any]:
    """Return ``block`` as a function of tensors, for building: it computes what the printed block does."""

    def call(*operands: torch.Tensor) -> torch.Tensor:
        values = dict(zip(block.parameters, operands, strict=False))
        for step in block.steps:
            operator = operator_named(step.operator)
            with eager(step.scope):
                made = evaluate(operator, step, [values[number] for number in step.operands], ())
            values.update(zip(step.results, made, strict=True))
        return values[block.result]

    return call


@contextlib.contextmanager
def eager(scope: Scope) -> Iterator[None]:
    """Enter what a scope means to eager execution; region annotations mean nothing to it."""
    import torch

    kinds = {context.kind for context in scope if isinstance(context, Context)}
    with contextlib.ExitStack() as stack:
        if "autocast" in kinds:
            stack.enter_context(torch.autocast("cpu", torch.bfloat16))
        if "no_grad" in kinds:
            stack.enter_context(torch.no_grad())
        yield


def memory_of(tensor: torch.Tensor) -> int:
    """Return what identifies the memory that ``tensor`` lies in."""
    key = storage_key(tensor)
    assert key is not None, "programs have no tensors without a storage"
    return key


class Memory:
    """Whose memory a program's steps write to and its outputs lie in, also of one that no builder would take.

    Attributes:
        inputs_written: whether a step writes to the memory of an input.
        outputs_shared: whether an output shares memory with an input or with another output.
    """

    def __init__(self, program: Program) -> None:
        self.inputs_written = self.outputs_shared = False
        unmarked = tuple(replace(argument, dynamic=()) for argument in program.arguments)
        inputs = make_inputs(unmarked, "cpu", 0)
        functions = [function_of_block(block) for block in program.blocks]
        tensors = dict(enumerate(inputs))
        memory = set(map(memory_of, inputs))
        with eager((Context("no_grad"),)):
            try:
                for step in program.steps:
                    operator = operator_named(step.operator)
                    operands = [tensors[number] for number in step.operands]
                    written = (memory_of(operands[position]) for position in operator.writes)
                    self.inputs_written |= not memory.isdisjoint(written)
                    with eager(step.scope):
                        made = evaluate(operator, step, operands, [functions[index] for index in step.blocks])
                    tensors.update(zip(step.results, made, strict=False))
            except REFUSALS:
                return  # what eager refuses is told where the program is checked
        self.outputs_shared = len(apart(inputs, tensors, program.outputs)) < len(program.outputs)


def apart(inputs: Sequence[torch.Tensor], tensors: Mapping[int, torch.Tensor], outputs: Sequence[int]) -> list[int]:
    """Return those of ``outputs`` that share no memory with an input or an earlier one of them."""
    seen, found = set(map(memory_of, inputs)), []
    for number in outputs:
        memory = memory_of(tensors[number])
        if memory not in seen:
            seen.add(memory)
            found.append(number)
    return found


def uses_rng(step: Step) -> bool:
    """Tell whether the step's own operator draws random numbers."""
    return operator_named(step.operator).uses_rng


def draws(step: Step, blocks: Sequence[Block]) -> bool:
    """Tell whether a step, or a block that it calls, draws random numbers."""
    return uses_rng(step) or any(uses_rng(inner) for index in step.blocks for inner in blocks[index].steps)


def touched(step: Step) -> tuple[int, ...]:
    """Return the values that ``step`` makes or writes to."""
    return (*step.results, *(step.operands[position] for position in operator_named(step.operator).writes))


def live_values(steps: Sequence[Step], ends: Iterable[int]) -> set[int]:
    """Return the values that ``ends`` depend on, as far as operands tell."""
    live = set(ends)
    for step in reversed(steps):
        if live.intersection(touched(step)):
            live.update(step.operands)
    return live


def live_steps(block: Block) -> set[Step]:
    """Return the steps that a block's result depends on."""
    live = live_values(block.steps, (block.result,))
    return {step for step in block.steps if live.intersection(step.results)}
