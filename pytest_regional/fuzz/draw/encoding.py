"""From small integers to a program: the layout that lets Hypothesis shrink.

Every node of a program is one code, and every code has the same number of integers whatever its operator is, so that
taking a code away, or making an integer smaller, leaves the meaning of all others alone. References are relative and
taken modulo what fits; a code that fits nothing is skipped, not rejected. Zero always means the simplest.
(Measured before this was built, on one seeded bug: size first with absolute references gave the minimal program in 0 of
16 runs, codes in 7 of 16, codes and a reducer that knows graphs in 16 of 16.)
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pytest_regional.fuzz.draw.templates import DRAWN, add_near_duplicates, add_template
from pytest_regional.fuzz.model.arguments import (
    FLOATS,
    LAYOUTS,
    PARTS,
    PARTS_OF_ANY_RANK,
    TOO_LARGE,
    Content,
    Layout,
    TensorInput,
)
from pytest_regional.fuzz.model.building import Builder, Refused, operands_supplied
from pytest_regional.fuzz.model.claims import live_values, needs_of_operator, restricted, uses_rng
from pytest_regional.fuzz.model.program import Block, Context, Program, Region, Scope, Step
from pytest_regional.fuzz.operators.operator import Operator
from pytest_regional.fuzz.operators.table import families, operator_named, operators
from pytest_regional.fuzz.settings import ProgramSetting, Setting


def fixed_up(builder: Builder, outputs: Sequence[int], *, training: bool) -> tuple[Builder, list[int]]:
    """Return all that is drawn, and leave out the last writes until eager can backpropagate from the outputs.

    Where there are none, it is the last step that goes: some operators of low precision have no derivative.
    """
    kept = [*outputs, *builder.unused_random_values(outputs)]
    while training and not builder.backpropagates(kept):
        writes = [place for place, step in enumerate(builder.steps) if operator_named(step.operator).writes]
        builder = _replayed(builder, writes[-1] if writes else len(builder.steps) - 1)
        kept = [number for number in kept if number in builder.values] or [0]
        kept += builder.unused_random_values(kept)
    return builder, kept


def _replayed(builder: Builder, without: int) -> Builder:
    """Build the same once more without one step, and without those that then do not fit."""
    again = Builder(builder.arguments, builder.blocks, builder.without)
    for place, step in enumerate(builder.steps):
        if place != without:
            with contextlib.suppress(Refused):
                again.add(step)
    return again


def with_order(program: Program) -> Program:
    """Return ``program`` with one region declared to run after another.

    That is one that stands wholly behind it where neither reads from the other, which then has to be moved; else one
    that stands wholly before it.
    """
    pair = next(_pairs_to_turn_round(program), None) or next(_ordered_pairs(program), None)
    if pair is None:
        return program

    def changed(context: Region | Context) -> Region | Context:
        later = isinstance(context, Region) and context.name == pair[1]
        return replace(context, after=(pair[0],)) if isinstance(context, Region) and later else context

    return program.with_steps(tuple(replace(step, scope=tuple(map(changed, step.scope))) for step in program.steps))


def _pairs_to_turn_round(program: Program) -> Iterator[tuple[str | int, str | int]]:
    if any(operator_named(step.operator).writes or uses_rng(step) or step.blocks for step in program.steps):
        return  # they have an order of their own
    for first, second in _ordered_pairs(program):
        ahead, behind = (
            [step for step in program.steps if name in (region.name for region in step.regions)]
            for name in (first, second)
        )
        made = {number for step in ahead for number in step.results}
        read = live_values(program.steps, [number for step in behind for number in step.operands])
        if made and not made & read and all(map(_computes, (ahead, behind))):
            yield second, first


def _computes(steps: Sequence[Step]) -> bool:
    """Tell whether it matters when ``steps`` run: a view computes nothing."""
    return any(step.results and operator_named(step.operator).family != "view" for step in steps)


def _ordered_pairs(program: Program) -> Iterator[tuple[str | int, str | int]]:
    """Yield names of two regions of which the first stands wholly before the second."""
    if any(step.regions for block in program.blocks for step in block.steps):
        return
    places: dict[str | int, list[int]] = {}
    for place, step in enumerate(program.steps):
        for region in step.regions:
            if region.name is not None:
                places.setdefault(region.name, []).append(place)
    for (first, before), (second, after) in itertools.permutations(places.items(), 2):
        if max(before) < min(after):
            yield first, second


#: Shapes that go together: each program takes its arguments from one line, so that operators find what they need.
SHAPES: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((4,), (2, 4), (4, 4), (1, 4), ()),
    ((2, 3), (3, 2), (3,), (2, 1), (3, 3)),
    ((2, 4, 4), (4, 4), (4,), (2, 1, 4), (2, 4, 1)),
    ((8, 8), (8,), (1, 8), (4, 8), (8, 1)),
    ((2, 3, 4, 4), (3, 3, 3, 3), (3,), (3, 1, 1, 1), (4,)),
    ((1, 2, 4, 4), (4, 4), (4,), (2, 4), (1, 2, 4, 4)),
    ((0, 4), (4,), (3, 4), (0,), (1, 4)),
    ((1, 1), (1,), (), (1, 2), (1, 1, 1)),
    ((3, 5), (5,), (5, 3), (3, 1), (3, 3)),
    # Of sizes that no vector divides, and one above a power of two: what stands behind the last vector is its own code.
    ((2, 3, 5, 7), (3, 5, 7), (3, 3, 2, 2), (3,), (5, 7)),
    ((1, 2, 3, 5, 5), (2, 3, 5, 5), (2, 2, 2, 2, 2), (2,), (1, 4, 3, 3)),
    ((66,), (3, 66), (66, 3), (1, 66), (66, 66)),
    ((65, 7, 7), (7, 7), (7,), (65, 1, 7), (65, 7)),
    ((129,), (2, 129), (129, 2), (1, 129), (129, 1)),
    ((8193,), (2, 8193), (16384,), (1,), (8193, 1)),
)

#: Elements that the steps of a program with large inputs make together.
_MOST_ELEMENTS = 2**22

#: What a code can stand in, the simplest first; each program picks three of them.
SCOPES: tuple[Scope, ...] = (
    (Region("a"),),
    (Region("b"),),
    (Region("c"),),
    (Region("a"), Region("b")),
    (Region("a", (("max_fusion_size", 8),)),),
    (Region(None),),
    (Region("b"), Region("a")),
    (Region("a", (("epilogue_fusion", False),)),),
    (Region(7),),
    (Context("tag"), Region("a")),
    (Context("no_grad"),),
    (Context("autocast"),),
    (Context("autocast"), Region("a")),
    (Region("a"), Region("b"), Region("c")),
    (Region("b", (("max_fusion_size", 8), ("epilogue_fusion", False))),),
    (Region("a"), Context("no_grad")),
    (Context("tag"),),
)

#: Families whose operators are drawn several times as often as one of their number would be.
WEIGHTS = {
    "call": 5,
    "checkpoint": 5,
    "nested": 5,
    "cond": 6,
    "loop": 2,
    "transform": 3,
    "statement": 4,
    "write": 2,
    "custom": 2,
}
WEIGHTS |= {"scatter": 3, "index": 3, "matmul": 4, "convolution": 4, "sort": 2, "integer": 2, "out": 3}

#: How many operators a code tries, and how far they lie apart in the table.
_ATTEMPTS, _STRIDE = 4, 101

#: For one in so many codes, an operator whose operands are not there gets some made.
_SUPPLIES = 5


@dataclass(frozen=True)
class EncodedArgument:
    """One input, as integers."""

    shape: int = 0
    kind: int = 0
    dtype: int = 0
    layout: int = 0
    content: int = 0
    gradient: int = 0
    alias: int = 0
    dynamic: int = 0
    returned: int = 0


@dataclass(frozen=True)
class EncodedStep:
    """One step, as integers."""

    operator: int = 0
    references: tuple[int, int, int, int] = (0, 0, 0, 0)
    numbers: tuple[int, int, int] = (0, 0, 0)
    scope: int = 0
    returned: int = 0


@dataclass(frozen=True)
class EncodedPlan:
    """What holds for a whole program, as integers; and the families of operators that are switched off in it."""

    shapes: int = 0
    dtype: int = 0
    scopes: tuple[int, int, int] = (0, 0, 0)
    training: int = 0
    dynamic: int = 0
    nonfinite: int = 0
    order: int = 0
    duplicate: int = 0
    variation: int = 0
    settings: tuple[int, int, int] = (0, 0, 0)
    off: frozenset[str] = frozenset()


@dataclass(frozen=True)
class EncodedProgram:
    """A whole program, encoded."""

    arguments: tuple[EncodedArgument, ...]
    steps: tuple[EncodedStep, ...]
    blocks: tuple[tuple[EncodedStep, ...], ...] = ()
    plan: EncodedPlan = EncodedPlan()


@dataclass(frozen=True)
class Options:
    """What programs may hold.

    Attributes:
        families: families of operators, None for all; see ``docs/fuzzing-programs.md``.
        training: whether they are trained: always, never, or (None) as drawn.
        regions: whether there are region annotations.
        dtypes: floating dtypes of inputs.
        dynamic: whether sizes may be dynamic.
        nonfinite: whether inputs may hold NaN and infinities.
        data_dependent: whether sizes may depend on data, for which Dynamo has to capture them
            (``capture_scalar_outputs``, ``capture_dynamic_output_shape_ops``).
        without: capabilities that no program needs; see :mod:`~pytest_regional.fuzz.model.claims`.
        settings: settings of the compiler that programs may have; half of them have one or several.
    """

    families: frozenset[str] | None = None
    training: bool | None = None
    regions: bool = True
    dtypes: tuple[str, ...] = FLOATS
    dynamic: bool = True
    nonfinite: bool = True
    data_dependent: bool = False
    without: frozenset[str] = frozenset()
    settings: tuple[Setting, ...] = ()


# Inputs


def argument_of(
    code: EncodedArgument, plan: EncodedPlan, options: Options, *, before: Sequence[TensorInput]
) -> TensorInput:
    """Return the input that ``code`` describes, ``before`` being those before it; the first is floating-point."""
    shapes = SHAPES[plan.shapes % len(SHAPES)]
    detached = "aliasing" not in options.without and code.layout // _LAYOUT_CODES % 2 == 1
    place = code.layout % _LAYOUT_CODES
    layout: Layout = LAYOUTS[place] if place < len(LAYOUTS) else "dense"
    if layout.removesuffix("_transposed") in options.without:
        layout = "dense"
    made = TensorInput(shapes[code.shape % len(shapes)], layout=layout, detached=detached)
    kind = code.kind % 16 if before else 0
    if kind in (5, 13):
        return replace(made, dtype="bool", content="mask")
    if kind == 12:
        return replace(made, dtype=_SIGNED[code.dtype % len(_SIGNED)], content="whole")
    if kind == 15:
        limited = (*_SIGNED, "uint8")
        return replace(made, dtype=limited[code.dtype % len(limited)], content="edges")
    if kind == 6:
        return replace(made, dtype="int64", content="index", below=2 + code.content % 3)
    if kind == 14 and before[0].shape:
        # Indices to read or write the first argument with: of its rows, each once or not, or elements.
        rows = before[0].shape[0]
        if code.content % 3 == 1:
            return TensorInput((rows,), "int64", content="order")
        shape = before[0].shape if code.content % 3 == 2 else (rows,)
        return TensorInput(shape, "int64", content="index", below=max(rows, 1))
    if kind in (7, 14):
        return replace(
            made, dtype=("int32", "int64", "uint8")[code.dtype % 3], content="index", below=2 + code.content % 7
        )
    dtype = options.dtypes[(plan.dtype + (code.dtype % 6 == 5)) % len(options.dtypes)]
    content = _content(code, plan, options)
    large = [dim for dim, size in enumerate(made.shape) if size > 1]
    marked = large and code.dynamic % 3 < 2 and _has_sizes(options) and plan.dynamic % 4 > 1
    return replace(
        made,
        dtype=dtype,
        content="positive" if dtype == "float16" and content in TOO_LARGE else content,
        requires_grad=is_trained(plan, options) and code.gradient % 4 > 0,
        dynamic=(large[code.dynamic % len(large)],) if marked else (),
    )


#: Values of a code that choose a layout; those without one choose the dense one.
_LAYOUT_CODES = 16

_SIGNED = ("int64", "int32", "int8", "int16")


def _has_sizes(options: Options) -> bool:
    """Tell whether sizes may be dynamic."""
    return options.dynamic and "dynamic_shapes" not in options.without


def _content(code: EncodedArgument, plan: EncodedPlan, options: Options) -> Content:
    contents: tuple[Content, ...] = ("signed", "positive", "distinct")
    kind = plan.nonfinite % 8
    if kind in (5, 6):
        contents = ("whole", "places")
    elif kind == 4:
        contents = ("edges", "large", "signed", "whole")
    elif options.nonfinite and kind == 7:
        contents = ("signed", "nonfinite", "positive", "nonfinite")
    return contents[code.content % len(contents)]


def is_trained(plan: EncodedPlan, options: Options) -> bool:
    """Tell whether the program is to be backpropagated through."""
    if "backward" in options.without:
        return False
    return plan.training % 3 > 0 if options.training is None else options.training


def _arguments(encoded: EncodedProgram, options: Options) -> tuple[TensorInput, ...]:
    made: list[TensorInput] = []
    for code in encoded.arguments:
        alias = None if "aliasing" in options.without else _aliasing(code, made, encoded.plan, options)
        made.append(alias or argument_of(code, encoded.plan, options, before=made))
    if is_trained(encoded.plan, options) and not any(argument.requires_grad for argument in made):
        made[0] = replace(made[0], requires_grad=True)
    return tuple(made)


#: One in so many arguments behind the first lies in the memory of an earlier one.
_ALIASES = 7


def _aliasing(
    code: EncodedArgument, made: Sequence[TensorInput], plan: EncodedPlan, options: Options
) -> TensorInput | None:
    """Return an input that lies in the memory of an earlier one, if the code asks for it."""
    if not made or code.alias % _ALIASES != _ALIASES - 1:
        return None
    target = code.shape % len(made)
    owner = made[target].alias_of
    target = target if owner is None else owner
    part = PARTS[code.alias // _ALIASES % len(PARTS)]
    if not made[target].shape and part not in PARTS_OF_ANY_RANK:
        part = "view"
    if part == "whole" and not made[target].detached:
        # AOTAutograd wants that either all tensors of one memory have a base or none.
        part = "view"
    wants = made[target].requires_grad
    if part != "same":
        wants = is_trained(plan, options) and made[target].dtype in FLOATS and code.gradient % 4 == 3
    return replace(made[target], alias_of=target, part=part, requires_grad=wants, dynamic=())


# Steps


@functools.lru_cache(maxsize=64)
def table(options: Options) -> tuple[Operator, ...]:
    """Return the operators that programs are made of, as often as they are to be drawn."""
    wanted = options.families or frozenset(families()) - frozenset(
        () if options.data_dependent else ("data_dependent",)
    )
    found = [
        operator
        for operator in operators().values()
        if operator.family in wanted and not needs_of_operator(operator) & options.without
    ]
    return tuple(operator for operator in found for _ in range(WEIGHTS.get(operator.family, 1)))


@functools.lru_cache(maxsize=1024)
def _open(options: Options, off: frozenset[str]) -> tuple[Operator, ...]:
    everything = table(options)
    return tuple(operator for operator in everything if operator.family not in off) or everything


def _candidates(code: EncodedStep, options: Options, off: frozenset[str]) -> Iterator[Operator]:
    """Yield the operator of a code, and others in case that it fits nothing.

    They stay the same when a family is switched on that they are not of.
    """
    everything, still = table(options), _open(options, off)
    for attempt in range(_ATTEMPTS):
        place = code.operator + attempt * _STRIDE
        operator = everything[place % len(everything)]
        yield operator if operator.family not in off else still[place % len(still)]


def _scope(code: EncodedStep, plan: EncodedPlan, options: Options) -> Scope:
    place = code.scope % 4
    scope = SCOPES[(plan.scopes[place - 1] + place - 1) % len(SCOPES)] if place else ()
    return scope if options.regions else tuple(one for one in scope if isinstance(one, Context))


def _block(codes: Iterable[EncodedStep], position: int, plan: EncodedPlan, options: Options) -> Block:
    """Return the block that the codes describe: elementwise, so that it can be called with any shape."""
    parameters = 1 + position % 2
    builder = Builder((TensorInput((4,), content="positive"),) * parameters, (), options.without)
    allowed = tuple(operator for operator in _open(options, plan.off) if operator.elementwise)
    small = allowed or tuple(operator for operator in operators().values() if operator.elementwise)
    for code in codes:
        scope = _scope(code, plan, options)
        if any(isinstance(context, Context) for context in scope):
            scope = ()
        builder.choose(small[code.operator % len(small)], code.references, code.numbers, scope)
    if not builder.steps:
        builder.add(Step("sin", (0,)))
    result = builder.steps[-1].results[0]
    live = live_values(builder.steps, (result,))
    steps = tuple(builder.steps)
    if any(uses_rng(step) and not live.intersection(step.results) for step in steps):
        steps = tuple(step for step in steps if live.intersection(step.results))
    return Block(tuple(range(parameters)), steps, result)


def program_of(
    encoded: EncodedProgram, options: Options | None = None, refusals: Counter[tuple[str, str]] | None = None
) -> Program:
    """Return the program that the codes describe; codes that fit nothing are left out.

    Writes that eager cannot backpropagate through are left out as well, so that every program runs and, if it is one to
    train, trains.

    Args:
        encoded: the codes.
        options: what the program may hold.
        refusals: counts what was left out, by operator and reason.
    """
    options = options or Options()
    plan = encoded.plan
    blocks = tuple(_block(block, position, plan, options) for position, block in enumerate(encoded.blocks))
    arguments = _arguments(encoded, options)
    large = any(math.prod(argument.shape) > 1024 for argument in arguments)
    room = _MOST_ELEMENTS if large else None
    builder = Builder(arguments, blocks, options.without, room, refusals)
    asked: dict[int, int] = {}
    for code in encoded.steps:
        step = _chosen(builder, code, plan, options)
        asked.update(dict.fromkeys(step.results if step else (), code.returned % 12))
    if not any(step.results or operators()[step.operator].writes for step in builder.steps):
        scope = _scope(encoded.steps[0], plan, options) if encoded.steps else ()
        # Steps that were refused after they were computed may have used all the room.
        builder = Builder(arguments, blocks, options.without, room, refusals)
        simplest = Step("add", (0, 0)) if builder.values[0].value_range.ordinary else Step("neg", (0,))
        builder.add(replace(simplest, scope=scope))
    if options.regions and plan.duplicate % 4 == 3:
        add_near_duplicates(builder, plan.duplicate // 4)
    if options.regions and plan.duplicate % 4 in (1, 2):
        number, variation = plan.duplicate // 4 + 64 * (plan.variation % 4), plan.variation // 4
        add_template(builder, DRAWN[number % len(DRAWN)], options.families, variation=variation)
    outputs = _outputs(builder, encoded.arguments, asked)
    training = is_trained(plan, options)
    builder, outputs = fixed_up(builder, outputs, training=training)
    if "aliasing" in options.without:
        outputs = builder.apart(outputs) or list(builder.add(Step("clone", tuple(outputs[:1]))).results)
    dynamic = True if _has_sizes(options) and plan.dynamic % 16 == 15 else None
    program = restricted(builder.program(outputs, training=training, dynamic=dynamic), options.without)
    if settings := _settings(plan, options):
        program = replace(program, settings=settings)
    return with_order(program) if plan.order % 4 == 3 and "region_order" not in options.without else program


def _settings(plan: EncodedPlan, options: Options) -> tuple[ProgramSetting, ...]:
    """Return none, one or three settings; the number is drawn with the first of them."""
    how_many = (0, 0, 1, 3)[plan.settings[0] % 4] if options.settings else 0
    chosen: dict[str, bool | int | float] = {}
    for number in plan.settings[:how_many]:
        setting = options.settings[number // 4 % len(options.settings)]
        chosen[setting.name] = setting.values[number % len(setting.values)]
    return tuple(chosen.items())


def _chosen(builder: Builder, code: EncodedStep, plan: EncodedPlan, options: Options) -> Step | None:
    scope = _scope(code, plan, options)
    for operator in _candidates(code, options, plan.off):
        step = builder.choose(operator, code.references, code.numbers, scope)
        if step is None and options.families is None and code.numbers[-1] % _SUPPLIES == _SUPPLIES - 1:
            # Behind others that make the operands that it lacks, if it fits then.
            mark = len(builder.steps)
            operands = operands_supplied(builder, operator, code.references, scope)
            if operands is not None:
                step = builder.choose(operator, code.references, code.numbers, scope, operands)
            if step is None:
                builder.take_back(mark)
        if step is not None:
            return step
    return None


def _outputs(builder: Builder, arguments: Sequence[EncodedArgument], asked: dict[int, int]) -> list[int]:
    """Return what nobody reads, what codes ask for, some of it twice, and sometimes an input."""
    used = {number for step in builder.steps for number in step.operands}
    made = [number for step in builder.steps for number in step.results if number in builder.values]
    hidden, returned, twice = 2, (1, 3), 3
    tensors = {id(builder.values[number].tensor): number for number in reversed(made)}
    # Of an operator that returns its operand itself, compiled code makes two tensors: that is returned if asked for.
    own = {number for number in made if tensors[id(builder.values[number].tensor)] == number}
    outputs = [
        number
        for number in made
        if (number not in used and number in own and asked.get(number) != hidden) or asked.get(number) in returned
    ]
    outputs += [number for number in made if asked.get(number) == twice]
    outputs += [index for index, code in enumerate(arguments) if code.returned % 12 == 11]
    return outputs or made[-1:] or [0]
