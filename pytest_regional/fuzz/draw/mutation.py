"""Mutants of a program: a few random edits, rebuilt into a program that eager runs.

What an edit leaves may not fit together: :func:`~pytest_regional.fuzz.shrink.candidates.rebuild` leaves out what does
not, as it does for the reducer. A mutant then has to keep what holds of every program that is drawn: it writes only
where drawn programs may, its regions have an order that can be kept, and eager runs it, forward and backward.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from pytest_regional.backends.spec import PARTITIONERS
from pytest_regional.fuzz.draw.encoding import SCOPES, SHAPES, Options, table, with_order
from pytest_regional.fuzz.model.arguments import FLOATS, LAYOUTS, TOO_LARGE, Content, TensorInput
from pytest_regional.fuzz.model.building import Builder, Refused
from pytest_regional.fuzz.model.claims import needs_of, restricted
from pytest_regional.fuzz.model.evaluation import REFUSALS
from pytest_regional.fuzz.model.program import Context, Program, Region, Scope, Step
from pytest_regional.fuzz.operators.operator import Operator, Picks
from pytest_regional.fuzz.operators.table import operator_named
from pytest_regional.fuzz.shrink.candidates import Candidate, rebuild
from pytest_regional.fuzz.shrink.edits import EDITS

#: How many edits are tried before a program is given up, and how many one mutant has at most.
_TRIES, _MOST_EDITS = 12, 3

#: How many steps a mutant has at most, how many elements all inputs have, and how many all steps make.
MOST_STEPS, _MOST_IN_INPUTS, _MOST_ELEMENTS = 24, 2**17, 2**22

#: Of the candidates of one of the reducer's edits, one of the first so many is taken.
_FIRST = 16

Mutation: TypeAlias = Callable[[Program, random.Random, Options], "Candidate | None"]


def mutated(program: Program, chance: random.Random, options: Options | None = None) -> Program | None:
    """Return a mutant of ``program``, the same for the same state of ``chance``; None where no try came to one.

    Args:
        program: what is mutated; it stays as it is.
        chance: what edits are drawn from.
        options: what the mutant may hold, as for programs that are drawn.
    """
    options = options or Options()
    wanted, made = chance.randint(1, _MOST_EDITS), 0
    current = program
    for _ in range(_TRIES):
        edited = _edited(current, chance, options)
        if edited is not None and edited.identity != program.identity:
            current, made = edited, made + 1
            if made == wanted:
                break
    return current if made else None


def _edited(program: Program, chance: random.Random, options: Options) -> Program | None:
    mutation = chance.choice(MUTATIONS)
    candidate = mutation(program, chance, options)
    # Inputs are made before anything else is known of them.
    if candidate is None or _elements(candidate.arguments) > _MOST_IN_INPUTS:
        return None
    edited = rebuild(candidate, program, elements=_MOST_ELEMENTS)
    if edited is None:
        return None
    edited = _reordered(restricted(edited, options.without), chance, options)
    return edited if is_drawable(edited, options) else None


def _elements(arguments: Sequence[TensorInput]) -> int:
    return sum(math.prod(argument.shape) for argument in arguments)


def is_drawable(program: Program, options: Options) -> bool:
    """Return whether eager runs ``program``, and it keeps what holds of all that are drawn with ``options``."""
    if not 0 < len(program.steps) <= MOST_STEPS or needs_of(program) & options.without:
        return False
    if _elements(program.arguments) > _MOST_IN_INPUTS or (program.regions and not options.regions):
        return False
    names = {setting.name for setting in options.settings}
    return all(name in names for name, _ in program.settings) and _is_built(program, options) and _runs(program)


def _is_built(program: Program, options: Options) -> bool:
    try:
        builder = Builder(program.arguments, program.blocks, options.without, _MOST_ELEMENTS)
        for step in program.steps:
            operands = [builder.values[number] for number in step.operands]
            if builder.unwritable(operator_named(step.operator), operands):
                return False
            builder.add(step)
    except (Refused, LookupError, *REFUSALS):
        return False
    known = all(number in builder.values for number in program.outputs)
    return known and not builder.unused_random_values(program.outputs)


def _runs(program: Program) -> bool:
    """Return whether eager runs ``program`` with the inputs that oracles give it, and backward if it trains."""
    try:
        inputs = program.inputs("cpu", 1)
        outputs = program(*inputs)
        ends = {id(one): one for one in outputs if one.requires_grad} if program.trains else {}
        if ends:
            torch.autograd.backward(list(ends.values()), [torch.ones_like(one) for one in ends.values()])
    except REFUSALS:
        return False
    return True


def _reordered(program: Program, chance: random.Random, options: Options) -> Program:
    """Return ``program`` with an order of regions that can be kept: the one that it had may be none any more."""
    if not any(region.after for step in program.all_steps() for region in step.regions):
        return program

    def plain(steps: Sequence[Step]) -> tuple[Step, ...]:
        return tuple(
            replace(step, scope=tuple(replace(one, after=()) if isinstance(one, Region) else one for one in step.scope))
            for step in steps
        )

    blocks = tuple(replace(block, steps=plain(block.steps)) for block in program.blocks)
    without = replace(program, steps=plain(program.steps), blocks=blocks)
    return with_order(without) if chance.random() < 0.7 and "region_order" not in options.without else without


# Steps


def exchange_operator(program: Program, chance: random.Random, options: Options) -> Candidate | None:
    """Let a step compute something else of the same operands, as many results."""
    place, step = _any_step(program, chance)
    old = operator_named(step.operator)
    builder = _built_up_to(program, place, options)
    others = [one for one in dict.fromkeys(table(options)) if one is not old and _is_alike(one, old)]
    chance.shuffle(others)
    for other in others[:8] if builder is not None else ():
        parameters = _parameters(builder, other, step, chance)
        if parameters is not None:
            return _with_step(program, place, replace(step, operator=other.name, parameters=parameters))
    return None


def _is_alike(one: Operator, other: Operator) -> bool:
    signature = ("results", "writes", "calls", "passes", "unbacked")
    same = all(getattr(one, name) == getattr(other, name) for name in signature)
    return same and len(one.operands) == len(other.operands)


def redraw_parameters(program: Program, chance: random.Random, options: Options) -> Candidate | None:
    """Pick the parameters of a step anew."""
    places = [place for place, step in enumerate(program.steps) if step.parameters]
    if not places:
        return None
    place = chance.choice(places)
    step, builder = program.steps[place], _built_up_to(program, place, options)
    parameters = _parameters(builder, operator_named(step.operator), step, chance)
    return None if parameters is None else _with_step(program, place, replace(step, parameters=parameters))


def _parameters(builder: Builder | None, operator: Operator, step: Step, chance: random.Random) -> Any:
    if builder is None or any(number not in builder.values for number in step.operands):
        return None
    return builder.parameters(operator, step.operands, Picks([chance.randrange(256) for _ in range(3)]))


def insert_step(program: Program, chance: random.Random, options: Options) -> Candidate | None:
    """Insert a step, in a region of a neighbour or of its own; what it makes is read later, or returned."""
    place = chance.randint(0, len(program.steps))
    builder = _built_up_to(program, place, options)
    if builder is None:
        return None
    operator = chance.choice(table(options))
    references, numbers = ([chance.randrange(256) for _ in range(4)] for _ in range(2))
    chosen = builder.choose(operator, references, numbers, _any_scope(program, chance, options))
    if chosen is None:
        return None
    fresh = max((number for step in program.steps for number in step.results), default=len(program.arguments)) + 1
    results = tuple(range(fresh, fresh + len(chosen.results)))
    later = list(program.steps[place:])
    outputs = program.outputs
    if results:
        read = _reading(later, builder, chosen.results[0], results[0], chance)
        outputs = outputs if read else (*outputs, *results)
    steps = (*program.steps[:place], replace(chosen, results=results), *later)
    return replace(Candidate.of(program), steps=steps, outputs=outputs)


def _reading(later: list[Step], builder: Builder, made: int, number: int, chance: random.Random) -> bool:
    """Let one step of ``later`` read ``number``, which is to be what ``made`` is; return whether one does."""
    new = builder.values[made]
    fitting = [
        (place, position)
        for place, step in enumerate(later)
        for position, operand in enumerate(step.operands)
        if operand in builder.values
        and (builder.values[operand].shape, builder.values[operand].dtype) == (new.shape, new.dtype)
    ]
    if not fitting:
        return False
    place, position = chance.choice(fitting)
    operands = later[place].operands
    later[place] = replace(later[place], operands=(*operands[:position], number, *operands[position + 1 :]))
    return True


def reducing_edit(program: Program, chance: random.Random, options: Options) -> Candidate | None:
    """Take something away, or make it simpler, as the reducer does."""
    candidates = chance.choice(EDITS)(program)
    some = [candidate for candidate, _ in zip(candidates, range(_FIRST), strict=False)]
    return chance.choice(some) if some else None


def return_another(program: Program, chance: random.Random, options: Options) -> Candidate | None:
    """Return one more value, or one no longer."""
    made = [*range(len(program.arguments)), *(number for step in program.steps for number in step.results)]
    outputs = list(program.outputs)
    if len(outputs) > 1 and chance.random() < 0.4:
        outputs.pop(chance.randrange(len(outputs)))
    else:
        outputs.insert(chance.randint(0, len(outputs)), chance.choice(made))
    return replace(Candidate.of(program), outputs=tuple(outputs))


# Regions


def move_border(program: Program, chance: random.Random, options: Options) -> Candidate | None:
    """Let a run of steps stand where the step before it does, or in another region, or in none."""
    begin = chance.randrange(len(program.steps))
    end = min(len(program.steps), begin + chance.choice((1, 1, 2, 4)))
    neighbour = program.steps[begin - 1].scope if begin else ()
    scope = neighbour if chance.random() < 0.5 else _any_scope(program, chance, options)
    moved = tuple(replace(step, scope=scope) for step in program.steps[begin:end])
    return replace(Candidate.of(program), steps=(*program.steps[:begin], *moved, *program.steps[end:]))


def _any_scope(program: Program, chance: random.Random, options: Options) -> Scope:
    """Return contexts of some step of ``program``, or others."""
    scope = chance.choice([step.scope for step in program.steps] if chance.random() < 0.6 else SCOPES)
    return scope if options.regions else tuple(one for one in scope if isinstance(one, Context))


# Inputs


def change_argument(program: Program, chance: random.Random, options: Options) -> Candidate | None:
    """Give one input another dtype, layout, content, or gradient."""
    own = [place for place, argument in enumerate(program.arguments) if argument.alias_of is None]
    place = chance.choice(own)
    changed = _changed(program.arguments[place], chance, options)
    if changed.content in TOO_LARGE and changed.dtype == "float16":
        changed = replace(changed, content="positive")
    if changed.dtype not in FLOATS or "backward" in options.without:
        changed = replace(changed, requires_grad=False)
    arguments = (*program.arguments[:place], changed, *program.arguments[place + 1 :])
    return _with_arguments(program, [_following(one, arguments) for one in arguments])


def _changed(argument: TensorInput, chance: random.Random, options: Options) -> TensorInput:
    floating = argument.dtype in FLOATS
    kind = chance.choice(("dtype", "layout", "layout", "content", "gradient", "detached") if floating else ("layout",))
    if kind == "dtype":
        return replace(argument, dtype=chance.choice(options.dtypes))
    if kind == "layout":
        return replace(argument, layout=chance.choice(LAYOUTS))
    if kind == "content":
        contents: tuple[Content, ...] = ("signed", "positive", "distinct", "whole", "places", "edges", "large")
        return replace(argument, content=chance.choice(contents))
    if kind == "gradient":
        return replace(argument, requires_grad=not argument.requires_grad)
    return replace(argument, detached=not argument.detached and "aliasing" not in options.without)


def _following(argument: TensorInput, arguments: Sequence[TensorInput]) -> TensorInput:
    """Return ``argument`` as its owner is now, if it is a part of another one."""
    if argument.alias_of is None:
        return argument
    owner = arguments[argument.alias_of]
    wants = owner.requires_grad if argument.part == "same" else argument.requires_grad and owner.dtype in FLOATS
    part = "view" if argument.part == "whole" and not owner.detached else argument.part
    made = replace(owner, alias_of=argument.alias_of, part=part, requires_grad=wants, dynamic=())
    return replace(made, detached=owner.detached)


def resize(program: Program, chance: random.Random, options: Options) -> Candidate | None:
    """Give one size of the inputs, wherever it occurs, another value of those that are drawn."""
    sizes = sorted({size for argument in program.arguments for size in argument.shape})
    drawn = sorted({size for shapes in SHAPES for shape in shapes for size in shape if size < 256})
    if not sizes:
        return None
    old, new = chance.choice(sizes), chance.choice(drawn)
    # A dynamic size is never 0 or 1, which compilers take for constants.
    arguments = [
        replace(
            one,
            shape=tuple(new if size == old else size for size in one.shape),
            dynamic=one.dynamic if new > 1 else (),
        )
        for one in program.arguments
    ]
    return _with_arguments(program, arguments)


def mark_dynamic(program: Program, chance: random.Random, options: Options) -> Candidate | None:
    """Mark a size of an input as dynamic, or none of its sizes, or compile for any sizes."""
    if not options.dynamic or "dynamic_shapes" in options.without:
        return None
    if chance.random() < 0.2:
        return replace(Candidate.of(program), dynamic=None if program.dynamic else True)
    place = chance.randrange(len(program.arguments))
    argument = program.arguments[place]
    large = [dim for dim, size in enumerate(argument.shape) if size > 1]
    if argument.alias_of is not None or not large:
        return None
    dynamic = () if argument.dynamic else (chance.choice(large),)
    arguments = list(program.arguments)
    arguments[place] = replace(argument, dynamic=dynamic)
    return _with_arguments(program, arguments)


# How it is compiled


def toggle_training(program: Program, chance: random.Random, options: Options) -> Candidate | None:
    """Train a program that is not trained, and the other way round; now and then with the other partitioner."""
    if options.training is not None or "backward" in options.without:
        return None
    if program.trains and program.partitioner is not None and chance.random() < 0.5:
        (other,) = (name for name in PARTITIONERS if name != program.partitioner)
        return replace(Candidate.of(program), partitioner=other)
    if program.trains:
        plain = [replace(argument, requires_grad=False) for argument in program.arguments]
        return replace(_with_arguments(program, plain), training=False)
    floats = [place for place, one in enumerate(program.arguments) if one.dtype in FLOATS and one.alias_of is None]
    if not floats:
        return None
    chosen = {chance.choice(floats), chance.choice(floats)}
    arguments = [
        replace(one, requires_grad=place in chosen or one.requires_grad) for place, one in enumerate(program.arguments)
    ]
    followed = [_following(one, arguments) for one in arguments]
    return replace(_with_arguments(program, followed), training=True)


def redraw_settings(program: Program, chance: random.Random, options: Options) -> Candidate | None:
    """Compile under other settings."""
    if not options.settings:
        return None
    chosen = chance.sample(options.settings, min(len(options.settings), chance.choice((0, 1, 1, 3))))
    settings = tuple((setting.name, chance.choice(setting.values)) for setting in chosen)
    return replace(Candidate.of(program), settings=settings)


#: The edits, those that change what is computed twice.
MUTATIONS: tuple[Mutation, ...] = (
    exchange_operator,
    exchange_operator,
    insert_step,
    insert_step,
    redraw_parameters,
    move_border,
    move_border,
    change_argument,
    resize,
    mark_dynamic,
    toggle_training,
    redraw_settings,
    return_another,
    reducing_edit,
)


def _any_step(program: Program, chance: random.Random) -> tuple[int, Step]:
    place = chance.randrange(len(program.steps))
    return place, program.steps[place]


def _built_up_to(program: Program, place: int, options: Options) -> Builder | None:
    """Return a builder that holds the steps before ``place``; None where they cannot be built under ``options``."""
    builder = Builder(program.arguments, program.blocks, options.without, _MOST_ELEMENTS)
    try:
        for step in program.steps[:place]:
            builder.add(step)
    except Refused:
        return None
    return builder


def _with_step(program: Program, place: int, step: Step) -> Candidate:
    return replace(Candidate.of(program), steps=(*program.steps[:place], step, *program.steps[place + 1 :]))


def _with_arguments(program: Program, arguments: Sequence[TensorInput]) -> Candidate:
    return replace(Candidate.of(program), arguments=tuple(arguments))


__all__ = ["MOST_STEPS", "MUTATIONS", "is_drawable", "mutated"]
