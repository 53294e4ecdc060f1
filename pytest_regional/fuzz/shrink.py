"""How a failing program becomes small: edits are tried, each of which makes candidates."""

from __future__ import annotations

import contextlib
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_regional._base.processes import cpu_seconds
from pytest_regional.fuzz.model.arguments import CONTENT_SOURCES, LAYOUTS, PARTS, TensorInput
from pytest_regional.fuzz.model.building import Builder, Refused
from pytest_regional.fuzz.model.claims import REFUSALS
from pytest_regional.fuzz.model.program import Block, Context, Program, Region, Step, renumbered
from pytest_regional.fuzz.operators.operator import Picks
from pytest_regional.fuzz.operators.table import operator_named, operators
from pytest_regional.fuzz.settings import ProgramSetting

if TYPE_CHECKING:
    from pytest_regional.fuzz.operators.operator import ProgramValue


@dataclass(frozen=True)
class Candidate:
    """The parts of a program that may not fit together. A step in ``dropped`` is left out and its users rewired."""

    arguments: tuple[TensorInput, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    blocks: tuple[Block, ...]
    training: bool
    dynamic: bool | None
    partitioner: str | None
    settings: tuple[ProgramSetting, ...] = ()
    dropped: frozenset[int] = frozenset()

    @classmethod
    def of(cls, program: Program) -> Candidate:
        """Return the candidate that changes nothing."""
        return cls(**{one.name: getattr(program, one.name) for one in fields(cls) if one.name != "dropped"})


def rebuild(candidate: Candidate, original: Program, *, elements: int | None = None) -> Program | None:
    """Return the program that ``candidate``, an edit of ``original``, comes to; None where none can be built.

    Steps that would make more than ``elements`` elements together do not fit.

    Who read a value that is no longer made reads another one of its shape and dtype: an operand of the step that made
    it, or else the earliest there is. A step that then does not fit is tried with its simplest parameters.
    """
    try:
        builder = Builder(candidate.arguments, candidate.blocks, elements=elements)
    except REFUSALS:
        return None  # an edited argument that has no such layout or alias
    before = _values_of(original)
    substitutes: dict[int, int] = {}
    for position, step in enumerate(candidate.steps):
        rewired = replace(step, operands=tuple(substitutes.get(number, number) for number in step.operands))
        if position in candidate.dropped or not _add(builder, rewired):
            for number in step.results:
                # A value of the same shape and dtype takes its place, if there is one.
                wanted = before.get(number)
                for other in (*rewired.operands, *builder.values) if wanted else ():
                    value = builder.values.get(other)
                    if wanted and value and (value.shape, value.dtype) == (wanted.shape, wanted.dtype):
                        substitutes[number] = other
                        break
    outputs = dict.fromkeys(range(len(candidate.outputs)))
    made = [substitutes.get(candidate.outputs[position], candidate.outputs[position]) for position in outputs]
    kept = [number for number in made if number in builder.values]
    if not kept or builder.unused_random_values(kept) or (candidate.training and not builder.backpropagates(kept)):
        return None
    built = builder.program(kept, training=candidate.training, dynamic=candidate.dynamic)
    return replace(built, partitioner=candidate.partitioner, settings=candidate.settings)


@functools.lru_cache(maxsize=4)
def _values_of(program: Program) -> Mapping[int, ProgramValue]:
    builder = Builder(program.arguments, program.blocks)
    for step in program.steps:
        builder.add(step)
    return builder.values


def _add(builder: Builder, step: Step) -> bool:
    with contextlib.suppress(Refused):
        builder.add(step)
        return True
    if not step.parameters or not all(number in builder.values for number in step.operands):
        return False
    simplest = builder.parameters(operator_named(step.operator), step.operands, Picks(()))
    if simplest is not None:
        with contextlib.suppress(Refused):
            builder.add(replace(step, parameters=simplest))
            return True
    return False


# What is simpler


def cost(program: Program) -> tuple[float, ...]:
    """Return what grows with every complication, the weightiest first."""
    steps = tuple(program.all_steps())
    contexts = [context for step in steps for context in step.scope]
    regions = dict.fromkeys(context for context in contexts if isinstance(context, Region))
    return (
        len(steps),
        len(program.blocks),
        len(program.arguments),
        len(contexts) + sum(len(region.configs) + len(region.after) for region in regions),
        len(regions),
        len(program.outputs),
        sum(_argument_cost(argument) for argument in program.arguments),
        program.training + (program.dynamic is not None) + (program.partitioner is not None) + len(program.settings),
        sum(_places()[step.operator] for step in steps),
        # Where a context begins that the step before does not stand in.
        sum(
            context not in before.scope[depth : depth + 1]
            for before, step in zip((Step(""), *program.steps), program.steps, strict=False)
            for depth, context in enumerate(step.scope)
        ),
        sum(_weight(value) for step in steps for _, value in step.parameters),
        sum(sum(map(ord, str(region.name))) if region.name is not None else 1 for region in regions),
        sum(number for step in steps for number in step.operands),
    )


@functools.cache
def _places() -> dict[str, int]:
    return {name: place for place, name in enumerate(operators())}


def _argument_cost(argument: TensorInput) -> float:
    return (
        (100 if argument.dtype != "float32" else 0)
        + 50 * LAYOUTS.index(argument.layout)
        + 50 * list(CONTENT_SOURCES).index(argument.content)
        + (50 if argument.alias_of is not None else 0)
        + 5 * PARTS.index(argument.part)
        + 10 * argument.detached
        + 50 * len(argument.dynamic)
        + 20 * argument.requires_grad
        + 2 * len(argument.shape)
        + min(math.prod(argument.shape), 10_000) / 1_000
    )


def _weight(value: object) -> float:
    if isinstance(value, tuple):
        return sum(map(_weight, value)) + len(value)
    if value is None:
        return 0.0
    return min(abs(float(value)), 100.0) if isinstance(value, (bool, int, float)) else 1.0


Edit: TypeAlias = Callable[[Program], Iterator[Candidate]]


def _chunks(count: int) -> Iterator[range]:
    """Yield ranges that cut everything, halves, quarters, ..., single positions; the last ones first."""
    size = count
    while size:
        for end in range(count, 0, -size):
            yield range(max(end - size, 0), end)
        size //= 2


# Steps


def drop_steps(program: Program) -> Iterator[Candidate]:
    """Leave out runs of steps; who read their results reads what they read."""
    for chunk in _chunks(len(program.steps)):
        if len(chunk) < len(program.steps):
            yield replace(Candidate.of(program), dropped=frozenset(chunk))


def drop_pairs(program: Program) -> Iterator[Candidate]:
    """Leave out two steps that are no neighbours."""
    count = len(program.steps)
    if count <= 12:
        for last in range(count - 1, 0, -1):
            for first in range(last - 1):
                yield replace(Candidate.of(program), dropped=frozenset((first, last)))


def drop_outputs(program: Program) -> Iterator[Candidate]:
    """Return less."""
    for chunk in _chunks(len(program.outputs)):
        kept = tuple(number for place, number in enumerate(program.outputs) if place not in chunk)
        if kept:
            yield replace(Candidate.of(program), outputs=kept)


def rewire_operands(program: Program) -> Iterator[Candidate]:
    """Let a step, or the program's end, read an earlier value instead, so that a step between is not needed."""
    made = [*range(len(program.arguments)), *(result for step in program.steps for result in step.results)]
    for place in range(len(program.steps) - 1, -1, -1):
        step = program.steps[place]
        for position, number in enumerate(step.operands):
            for other in made[: made.index(number)]:
                operands = (*step.operands[:position], other, *step.operands[position + 1 :])
                yield _with_step(program, place, replace(step, operands=operands))


def _with_step(program: Program, place: int, step: Step) -> Candidate:
    return replace(Candidate.of(program), steps=(*program.steps[:place], step, *program.steps[place + 1 :]))


def read_one_operand(program: Program) -> Iterator[Candidate]:
    """Let a step do the simplest thing with one of its operands and forget the others, and blocks that it calls."""
    for place, step in enumerate(program.steps):
        if len(step.operands) > 1 or step.blocks:
            for number in dict.fromkeys(step.operands):
                for name in ("sin", "neg", "clone"):  # of floating-point numbers, and of anything
                    simple = Step(name, (number,), (), step.results[:1], step.scope)
                    yield _without_unused_blocks(_with_step(program, place, simple))


def simplify_operators(program: Program) -> Iterator[Candidate]:
    """Replace an operator by a simpler one that takes as many operands, parameters and results: two of each family.

    If no simple operator of a family shows a failure, the others hardly do, and there are up to two hundred
    (``docs/fuzzing-programs.md`` says what asking them all cost).
    """
    for place, step in enumerate(program.steps):
        operator = operator_named(step.operator)
        asked: Counter[str] = Counter()
        for other in operators().values():
            if other is operator:
                break
            names = ("results", "writes", "calls", "unbacked")
            alike = all(getattr(other, name) == getattr(operator, name) for name in names)
            if asked[other.family] == 2 or not alike or len(other.operands) != len(operator.operands):
                continue
            if other.choose is operator.choose:
                asked[other.family] += 1
                yield _with_step(program, place, replace(step, operator=other.name))
            elif not other.parameter_names:
                asked[other.family] += 1
                yield _with_step(program, place, replace(step, operator=other.name, parameters=()))


def simplify_parameters(program: Program) -> Iterator[Candidate]:
    """Make numbers zero, one or half of what they are, alone or in a row, switches off, and take names away."""
    for place, step in enumerate(program.steps):
        for position, (name, value) in enumerate(step.parameters):
            for simpler in _simpler_numbers(value):
                changed = (*step.parameters[:position], (name, simpler), *step.parameters[position + 1 :])
                yield _with_step(program, place, replace(step, parameters=changed))


def _simpler_numbers(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [False] if value else []
    if isinstance(value, (int, float)):
        kind = type(value)
        return [kind(smaller) for smaller in (0, 1, value // 2) if abs(smaller) < abs(value)]
    if isinstance(value, tuple) and all(isinstance(item, (int, float)) for item in value):
        return [tuple(type(item)(number) for item in value) for number in (0, 1) if set(value) != {number}]
    return [None] if isinstance(value, str) else []


# Arguments


def drop_arguments(program: Program) -> Iterator[Candidate]:
    """Take an argument away; who read it reads another one."""
    for index in range(len(program.arguments) - 1, -1, -1):
        for other in (None, *range(len(program.arguments))):
            if other != index and not any(argument.alias_of == index for argument in program.arguments):
                yield _without_argument(program, index, other)


def _without_argument(program: Program, index: int, other: int | None) -> Candidate:
    def number(old: int) -> int:
        old = other if old == index and other is not None else old
        # Nothing has the number -1: whoever still reads the argument is dropped.
        return -1 if old == index else old - (index < old < len(program.arguments))

    arguments = tuple(
        argument if argument.alias_of is None else replace(argument, alias_of=number(argument.alias_of))
        for place, argument in enumerate(program.arguments)
        if place != index
    )
    steps = tuple(replace(step, operands=tuple(map(number, step.operands))) for step in program.steps)
    return replace(Candidate.of(program), arguments=arguments, steps=steps, outputs=tuple(map(number, program.outputs)))


def simplify_arguments(program: Program) -> Iterator[Candidate]:
    """Make all arguments, then each one, ordinary: float32, dense, without gradient, alias, or dynamic sizes."""
    for change in _ARGUMENT_CHANGES:
        yield _with_arguments(program, [replace(argument, **change) for argument in program.arguments])
    for index, argument in enumerate(program.arguments):
        for change in _ARGUMENT_CHANGES:
            yield _with_argument(program, index, replace(argument, **change))


_ARGUMENT_CHANGES: tuple[dict[str, Any], ...] = (
    {"alias_of": None, "part": "whole", "detached": False},
    {"detached": False},
    {"part": "same"},
    {"part": "view"},
    {"dynamic": ()},
    {"requires_grad": False},
    {"layout": "dense"},
    {"dtype": "float32"},
    {"content": "signed", "below": 0},
    {"content": "signed", "dtype": "float32", "below": 0},
    {"content": "positive"},
)


def _with_arguments(program: Program, arguments: Sequence[TensorInput]) -> Candidate:
    return replace(Candidate.of(program), arguments=tuple(arguments))


def _with_argument(program: Program, index: int, argument: TensorInput) -> Candidate:
    return _with_arguments(program, [*program.arguments[:index], argument, *program.arguments[index + 1 :]])


def shrink_shapes(program: Program) -> Iterator[Candidate]:
    """Give all arguments the same few sizes, then make one size after the other smaller wherever it occurs."""
    few: tuple[tuple[int, ...], ...] = ((), (1,), (2,), (2, 2))
    for shape in few:
        yield _with_arguments(
            program,
            [
                replace(argument, shape=shape, dynamic=tuple(one for one in argument.dynamic if one < len(shape)))
                for argument in program.arguments
            ],
        )
    sizes = sorted({size for argument in program.arguments for size in argument.shape}, reverse=True)
    for size in sizes:
        for smaller in sorted({1, 2, size // 2, size - 1}):
            if 0 < smaller < size:
                yield _with_arguments(program, [argument.resized(size, smaller) for argument in program.arguments])
    for index, argument in enumerate(program.arguments):
        for shape in (argument.shape[1:], argument.shape[:-1]):
            if argument.shape:
                yield _with_argument(program, index, replace(argument, shape=shape, dynamic=()))


# Blocks


def inline_blocks(program: Program) -> Iterator[Candidate]:
    """Write a block's steps where it is called."""
    for place, step in enumerate(program.steps):
        for index in step.blocks:
            inlined = _inlined(program, step, program.blocks[index])
            steps = (*program.steps[:place], *inlined, *program.steps[place + 1 :])
            yield _without_unused_blocks(replace(Candidate.of(program), steps=steps))


def _inlined(program: Program, step: Step, block: Block) -> tuple[Step, ...]:
    free = max((number for other in program.steps for number in other.results), default=len(program.arguments)) + 1
    called = step.operands[-len(block.parameters) :] if len(step.operands) >= len(block.parameters) else step.operands
    numbers = {
        number: called[min(position, len(called) - 1)] for position, number in enumerate(block.parameters) if called
    }
    for inner in block.steps:
        for result in inner.results:
            numbers[result], free = free, free + 1
    if step.results:
        numbers[block.result] = step.results[0]
    return tuple(
        replace(
            inner,
            operands=tuple(numbers.get(number, -1) for number in inner.operands),
            results=tuple(numbers[number] for number in inner.results),
            scope=(*step.scope, *inner.scope),
        )
        for inner in block.steps
    )


def drop_block_steps(program: Program) -> Iterator[Candidate]:
    """Leave out steps of blocks, and blocks that nobody calls; let calls name the first block."""
    yield _without_unused_blocks(Candidate.of(program))
    for place, step in enumerate(program.steps):
        if any(step.blocks):
            yield _without_unused_blocks(_with_step(program, place, replace(step, blocks=(0,) * len(step.blocks))))
    for index, block in enumerate(program.blocks):
        for place in range(len(block.steps) - 1, -1, -1):
            if len(block.steps) > 1:
                gone = block.steps[place]
                substitutes = dict.fromkeys(gone.results, gone.operands[0])
                steps = tuple(
                    replace(step, operands=tuple(substitutes.get(number, number) for number in step.operands))
                    for step in (*block.steps[:place], *block.steps[place + 1 :])
                )
                shorter = replace(block, steps=steps, result=substitutes.get(block.result, block.result))
                blocks = (*program.blocks[:index], shorter, *program.blocks[index + 1 :])
                yield replace(Candidate.of(program), blocks=blocks)


def _without_unused_blocks(candidate: Candidate) -> Candidate:
    used = sorted({index for step in candidate.steps for index in step.blocks})
    numbers = {index: place for place, index in enumerate(used)}
    steps = tuple(replace(step, blocks=tuple(numbers[index] for index in step.blocks)) for step in candidate.steps)
    return replace(candidate, steps=steps, blocks=tuple(candidate.blocks[index] for index in used))


# Regions and modes


def drop_contexts(program: Program) -> Iterator[Candidate]:
    """Take all contexts away, then one kind everywhere, then one at one step."""
    contexts = dict.fromkeys(context for step in program.all_steps() for context in step.scope)
    yield _rescoped(program, dict.fromkeys(contexts))
    for context in contexts:
        yield _rescoped(program, {context: None})
    for place, step in enumerate(program.steps):
        for depth in range(len(step.scope)):
            scope = (*step.scope[:depth], *step.scope[depth + 1 :])
            yield _with_step(program, place, replace(step, scope=scope))


def _rescoped(program: Program, changes: Mapping[Region | Context, Region | None]) -> Candidate:
    """Return ``program`` with other contexts in place of some, or none."""

    def changed(steps: Sequence[Step]) -> tuple[Step, ...]:
        return tuple(
            replace(step, scope=tuple(new for old in step.scope if (new := changes.get(old, old)) is not None))
            for step in steps
        )

    blocks = tuple(replace(block, steps=changed(block.steps)) for block in program.blocks)
    return replace(Candidate.of(program), steps=changed(program.steps), blocks=blocks)


def simplify_regions(program: Program) -> Iterator[Candidate]:
    """Merge two regions, take settings and order away, and call regions by the first letters."""
    regions = dict.fromkeys(
        context for step in program.all_steps() for context in step.scope if isinstance(context, Region)
    )
    for old in regions:
        plainer = (replace(old, configs=()), replace(old, after=()), Region("a"), Region("b"), Region("c"))
        for new in (*plainer, *(other for other in regions if other != old)):
            yield _rescoped(program, {old: new})


def simplify_modes(program: Program) -> Iterator[Candidate]:
    """Compile under default settings, do not train, leave dynamic shapes and the partitioner to the compiler."""
    if program.settings:
        yield replace(Candidate.of(program), settings=())
    for place in range(len(program.settings)):
        kept = (*program.settings[:place], *program.settings[place + 1 :])
        yield replace(Candidate.of(program), settings=kept)
    yield replace(Candidate.of(program), training=False)
    yield replace(Candidate.of(program), dynamic=None)
    yield replace(Candidate.of(program), partitioner=None)


EDITS: tuple[Edit, ...] = (
    drop_steps,
    drop_outputs,
    drop_contexts,
    drop_arguments,
    inline_blocks,
    drop_block_steps,
    read_one_operand,
    rewire_operands,
    drop_pairs,
    simplify_modes,
    simplify_regions,
    simplify_arguments,
    shrink_shapes,
    simplify_operators,
    simplify_parameters,
)


def reduce_program(
    program: Program, still_fails: Callable[[Program], bool], *, seconds: float = 60.0, attempts: int = 500
) -> Program:
    """Return a program no larger than ``program`` that still fails; no edit known here makes it smaller.

    Args:
        program: a program for which ``still_fails`` holds.
        still_fails: whether a program fails in the same way. What it raises is passed on.
        seconds: of processor time, after which no candidate is tried.
        attempts: ``still_fails`` is called no more often.
    """
    deadline = cpu_seconds() + seconds
    seen = {program.identity}

    def successes(edit: Edit, program: Program) -> Iterator[Program]:
        """Yield the simpler programs that ``edit`` makes and that still fail; none is asked for twice."""
        nonlocal attempts
        for candidate in edit(program):
            if attempts <= 0 or cpu_seconds() >= deadline:
                return
            smaller = rebuild(candidate, program)
            if smaller is None or cost(smaller) >= cost(program) or (identity := smaller.identity) in seen:
                continue
            seen.add(identity)
            # Before it is asked for: what oracles draw for a program depends on its numbers.
            smaller = renumbered(smaller)
            attempts -= 1
            if still_fails(smaller):
                yield smaller

    before = None
    while before is not program and attempts > 0 and cpu_seconds() < deadline:
        before = program
        for edit in EDITS:
            found: Program | None = program
            while found is not None:  # as often as it helps
                program, found = found, next(successes(edit, found), None)
    return program
