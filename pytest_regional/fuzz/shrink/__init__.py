"""How a failing program becomes small: edits are tried, each of which makes candidates."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_regional._base.processes import cpu_seconds
from pytest_regional.fuzz.model.arguments import CONTENT_SOURCES, LAYOUTS, PARTS, TensorInput
from pytest_regional.fuzz.model.building import Builder, Refused
from pytest_regional.fuzz.model.claims import REFUSALS
from pytest_regional.fuzz.model.program import Block, Context, Program, Region, Scope, Step, renumbered
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
        return cls(
            program.arguments,
            program.steps,
            program.outputs,
            program.blocks,
            program.training,
            program.dynamic,
            program.partitioner,
            program.settings,
        )


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
                substitutes.update(_substitute(builder, number, rewired, before))
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
    return _fits(builder, step) or _fits(builder, _with_simplest_parameters(builder, step))


def _fits(builder: Builder, step: Step | None) -> bool:
    if step is None:
        return False
    try:
        builder.add(step)
    except Refused:
        return False
    return True


def _with_simplest_parameters(builder: Builder, step: Step) -> Step | None:
    operator = operator_named(step.operator)
    if not step.parameters or not all(number in builder.values for number in step.operands):
        return None
    parameters = builder.parameters(operator, step.operands, Picks(()))
    return None if parameters is None else replace(step, parameters=parameters)


def _substitute(builder: Builder, number: int, step: Step, before: Mapping[int, ProgramValue]) -> dict[int, int]:
    """Map ``number``, which ``step`` would have made, to a value of the same shape and dtype, if there is one."""
    wanted = before.get(number)
    for other in (*step.operands, *builder.values):
        value = builder.values.get(other)
        if wanted and value and (value.shape, value.dtype) == (wanted.shape, wanted.dtype):
            return {number: other}
    return {}


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
        sum(map(len, _switches(program))),
        sum(_weight(value) for step in steps for _, value in step.parameters),
        sum(_name_cost(region) for region in regions),
        sum(number for step in steps for number in step.operands),
    )


def _switches(program: Program) -> list[list[int]]:
    """Return where a context begins that the step before does not stand in."""
    steps = program.steps
    return [
        [depth for depth, context in enumerate(step.scope) if context not in before.scope[depth : depth + 1]]
        for before, step in zip((Step(""), *steps), steps, strict=False)
    ]


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


def _name_cost(region: Region) -> int:
    return sum(map(ord, str(region.name))) if region.name is not None else 1


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
    for place in range(len(program.steps) - 1, -1, -1):
        step = program.steps[place]
        for position, number in enumerate(step.operands):
            for other in _earlier(program, number):
                operands = (*step.operands[:position], other, *step.operands[position + 1 :])
                yield _with_step(program, place, replace(step, operands=operands))


def _earlier(program: Program, number: int) -> list[int]:
    made = [*range(len(program.arguments)), *(result for step in program.steps for result in step.results)]
    return made[: made.index(number)]


def _with_step(program: Program, place: int, step: Step) -> Candidate:
    return replace(Candidate.of(program), steps=(*program.steps[:place], step, *program.steps[place + 1 :]))


def read_one_operand(program: Program) -> Iterator[Candidate]:
    """Let a step do the simplest thing with one of its operands and forget the others, and blocks that it calls."""
    for place, step in enumerate(program.steps):
        if len(step.operands) > 1 or step.blocks:
            for number in dict.fromkeys(step.operands):
                for name in _SIMPLEST:
                    simple = Step(name, (number,), (), step.results[:1], step.scope)
                    yield _without_unused_blocks(_with_step(program, place, simple))


#: Operators of one operand, of floating-point numbers and of anything.
_SIMPLEST = ("sin", "neg", "clone")


def simplify_operators(program: Program) -> Iterator[Candidate]:
    """Replace an operator by a simpler one that takes as many operands, parameters and results: few of each family.

    If no simple operator of a family shows a failure, the others hardly do, and there are up to two hundred
    (``docs/fuzzing-programs.md`` says what asking them all cost).
    """
    for place, step in enumerate(program.steps):
        operator = operator_named(step.operator)
        asked: Counter[str] = Counter()
        for other in operators().values():
            if other is operator:
                break
            if asked[other.family] == _ASKED_OF_A_FAMILY or not _alike(other, operator):
                continue
            if other.choose is operator.choose:
                asked[other.family] += 1
                yield _with_step(program, place, replace(step, operator=other.name))
            elif not other.parameter_names:
                asked[other.family] += 1
                yield _with_step(program, place, replace(step, operator=other.name, parameters=()))


#: So many operators of one family take the place of another one.
_ASKED_OF_A_FAMILY = 2


def _alike(other: Any, operator: Any) -> bool:
    return all(
        getattr(other, name) == getattr(operator, name) for name in ("results", "writes", "calls", "unbacked")
    ) and len(other.operands) == len(operator.operands)


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
        yield _with_arguments(program, [_shaped(argument, shape) for argument in program.arguments])
    sizes = sorted({size for argument in program.arguments for size in argument.shape}, reverse=True)
    for size in sizes:
        for smaller in sorted({1, 2, size // 2, size - 1}):
            if 0 < smaller < size:
                yield _with_arguments(program, [_resized(argument, size, smaller) for argument in program.arguments])
    for index, argument in enumerate(program.arguments):
        for shape in (argument.shape[1:], argument.shape[:-1]):
            if argument.shape:
                yield _with_argument(program, index, replace(argument, shape=shape, dynamic=()))


def _shaped(argument: TensorInput, shape: tuple[int, ...]) -> TensorInput:
    return replace(argument, shape=shape, dynamic=tuple(one for one in argument.dynamic if one < len(shape)))


def _resized(argument: TensorInput, size: int, smaller: int) -> TensorInput:
    return replace(argument, shape=tuple(smaller if old == size else old for old in argument.shape))


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
                yield _with_block(program, index, _without_block_step(block, place))


def _without_block_step(block: Block, place: int) -> Block:
    gone = block.steps[place]
    substitutes = dict.fromkeys(gone.results, gone.operands[0])
    steps = tuple(
        replace(step, operands=tuple(substitutes.get(number, number) for number in step.operands))
        for step in (*block.steps[:place], *block.steps[place + 1 :])
    )
    return replace(block, steps=steps, result=substitutes.get(block.result, block.result))


def _with_block(program: Program, index: int, block: Block) -> Candidate:
    return replace(Candidate.of(program), blocks=(*program.blocks[:index], block, *program.blocks[index + 1 :]))


def _without_unused_blocks(candidate: Candidate) -> Candidate:
    used = sorted({index for step in candidate.steps for index in step.blocks})
    numbers = {index: place for place, index in enumerate(used)}
    steps = tuple(replace(step, blocks=tuple(numbers[index] for index in step.blocks)) for step in candidate.steps)
    return replace(candidate, steps=steps, blocks=tuple(candidate.blocks[index] for index in used))


# Regions and modes


def drop_contexts(program: Program) -> Iterator[Candidate]:
    """Take all contexts away, then one kind everywhere, then one at one step."""
    yield _rescoped(program, lambda scope: ())
    for context in dict.fromkeys(context for step in program.all_steps() for context in step.scope):
        yield _rescoped(program, functools.partial(_without, gone=context))
    for place, step in enumerate(program.steps):
        for depth in range(len(step.scope)):
            scope = (*step.scope[:depth], *step.scope[depth + 1 :])
            yield _with_step(program, place, replace(step, scope=scope))


def _rescoped(program: Program, change: Callable[[Scope], Scope]) -> Candidate:
    def changed(steps: Sequence[Step]) -> tuple[Step, ...]:
        return tuple(replace(step, scope=change(step.scope)) for step in steps)

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
            yield _rescoped(program, functools.partial(_replaced, old=old, new=new))


def _without(scope: Scope, gone: Region | Context) -> Scope:
    return tuple(context for context in scope if context != gone)


def _replaced(scope: Scope, old: Region | Context, new: Region | Context) -> Scope:
    return tuple(new if context == old else context for context in scope)


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
    search = _Search(still_fails, cpu_seconds() + seconds, attempts)
    return search.fixed_point(program)


class _Search:
    """A greedy descent that asks for no program twice."""

    def __init__(self, still_fails: Callable[[Program], bool], deadline: float, attempts: int) -> None:
        self._still_fails, self._deadline, self._attempts = still_fails, deadline, attempts
        self._seen: set[str] = set()

    def fixed_point(self, program: Program) -> Program:
        before = None
        self._seen.add(program.identity)
        while before is not program and not self._spent:
            before = program
            for edit in EDITS:
                program = self._improve(program, edit)
        return program

    @property
    def _spent(self) -> bool:
        return self._attempts <= 0 or cpu_seconds() >= self._deadline

    def _improve(self, program: Program, edit: Edit) -> Program:
        """Apply ``edit`` as often as it helps."""
        found: Program | None = program
        while found is not None:
            program, found = found, next(self._successes(found, edit), None)
        return program

    def _successes(self, program: Program, edit: Edit) -> Iterator[Program]:
        for candidate in edit(program):
            if self._spent:
                return
            smaller = self._rebuilt(candidate, program)
            if smaller is not None and self._fails(smaller):
                yield smaller

    def _rebuilt(self, candidate: Candidate, program: Program) -> Program | None:
        """Return the program that ``candidate`` comes to, if it is simpler than ``program`` and new."""
        smaller = rebuild(candidate, program)
        if smaller is None or cost(smaller) >= cost(program):
            return None
        identity = smaller.identity
        if identity in self._seen:
            return None
        self._seen.add(identity)
        # Before it is asked for: what oracles draw for a program depends on its numbers.
        return renumbered(smaller)

    def _fails(self, program: Program) -> bool:
        self._attempts -= 1
        return self._still_fails(program)
