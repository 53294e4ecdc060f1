"""The oracle ``rewrites``: a program that is written otherwise, and means the same, gives the same.

No float64 run is needed for it: what is compared are two compiled programs. One rewrite is drawn for each program:

* a region that ends one statement earlier or later, that is split in two, or merged with another;
* an annotation put around one statement, or taken away;
* two statements exchanged that neither read nor write what the other one writes;
* a copy, a multiplication by 1 or a view of all elements put between a value and one reader of it, in its region or in
  none.

All but the last leave the sequence of operators in each dependence as it is. In the mode ``interpret``, where each
operator is PyTorch's own, the bits must then be the same; elsewhere, and for the last, the difference is judged by the
rule of parity. Eager has to compute the same bits for both programs: else nothing is said.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pytest_regional.fuzz.model.building import Builder, Refused, is_buildable
from pytest_regional.fuzz.model.claims import disclaimed, draws, memory_of, needs_of
from pytest_regional.fuzz.model.program import Program, Region, Scope, Step
from pytest_regional.fuzz.operators.table import operator_named
from pytest_regional.fuzz.oracles.example_run import ExampleRun, NoClaim, Oracle, kinds_of
from pytest_regional.fuzz.oracles.parity import mismatches_of, raise_failure, raise_mismatches, without_fake_strides
from pytest_regional.fuzz.settings import INTERPRETED
from pytest_regional.harness.parity.compare import BadProgramError, compare


@dataclass(frozen=True)
class Rewrite:
    """A program that means what another one does.

    Attributes:
        what: what was changed, in words.
        program: the program.
        same_operators: whether the operators are the same, each on the same operands.
    """

    what: str
    program: Program
    same_operators: bool = True


def check_rewrites(example: ExampleRun) -> None:
    """Raise where a rewritten program fails, or differs from the program as it was."""
    if example.cold.error is not None:
        raise NoClaim("the program does not run")
    rewrite = rewritten(example.program, random.Random(example.program.source), disclaimed(example.regional._spec))
    if rewrite is None:
        raise NoClaim("no rewrite fits the program")
    other = example.of(rewrite.program)
    try:
        _ = other.expected
    except BadProgramError as error:
        raise NoClaim(f"eager refuses the program with {rewrite.what}") from error
    if not compare(example.expected[0].eager, other.expected[0].eager, level="bitwise").ok:
        raise NoClaim(f"with {rewrite.what}, eager computes other bits")
    raise_failure(other, other.cold, "rewrites")
    own = without_fake_strides(other, other.expected[0].inputs, mismatches_of(other, other.cold))
    raise_mismatches(example, own, "rewrites", f"with {rewrite.what}, it differs from eager: ")
    exact = rewrite.same_operators and (example.mode in INTERPRETED or example.alone)
    first, second = example.cold.executions[0], other.cold.executions[0]
    differs = (
        compare(first, second, level="bitwise") if exact else compare(first, second, example.expected[0].fp64)
    ).mismatches
    if differs:
        detail = f"with {rewrite.what}, the compiled program gives another result: {'; '.join(map(str, differs[:4]))}"
        raise example.violation("rewrites", "run", detail, origin=f"other bits: {kinds_of(differs)}")


def rewritten(program: Program, chance: random.Random, without: frozenset[str] = frozenset()) -> Rewrite | None:
    """Return one rewrite of ``program``, of the kinds that fit it; None where none does, or regions have an order.

    Args:
        program: what to rewrite.
        chance: draws the rewrite.
        without: capabilities that the rewrite may need only where the program does.
    """
    if any(region.after for region in program.regions):
        return None
    kinds = list(KINDS)
    chance.shuffle(kinds)
    for kind in kinds:
        for rewrite in kind(program, chance):
            needs = needs_of(rewrite.program) - needs_of(program)
            if rewrite.program.source != program.source and not needs & without and is_buildable(rewrite.program):
                return rewrite
    return None


# Regions


def move_border(program: Program, chance: random.Random) -> Iterator[Rewrite]:
    """Put a statement beside a region into it, or the first or last one of a region out of it."""
    steps = program.steps
    beside = [
        (one, other)
        for one in range(len(steps))
        for other in (one - 1, one + 1)
        if 0 <= other < len(steps)
        and steps[one].scope != steps[other].scope
        and steps[one].contexts == steps[other].contexts
    ]
    chance.shuffle(beside)
    for one, other in beside:
        scoped = replace(steps[one], scope=steps[other].scope)
        yield Rewrite(f"statement {one} in the region of its neighbour", _with_step(program, one, scoped))


def split_region(program: Program, chance: random.Random) -> Iterator[Rewrite]:
    """Give the second part of a region another name."""
    regions = [region for region in program.regions if region.name is not None]
    chance.shuffle(regions)
    for region in regions:
        inside = [at for at, step in enumerate(program.steps) if step.region == region]
        if len(inside) > 1:
            cut = chance.choice(inside[1:])
            other = replace(region, name=f"{region.name} split")
            steps = tuple(
                replace(step, scope=_exchanged(step.scope, region, other)) if at >= cut else step
                for at, step in enumerate(program.steps)
            )
            yield Rewrite(f"region {region.name!r} split in two", program.with_steps(steps))


def merge_regions(program: Program, chance: random.Random) -> Iterator[Rewrite]:
    """Give two regions one name and the settings of one of them."""
    regions = list(program.regions)
    if len(regions) < 2:
        return
    kept, gone = chance.sample(regions, 2)
    steps = tuple(replace(step, scope=_exchanged(step.scope, gone, kept)) for step in program.steps)
    yield Rewrite(f"regions {kept.name!r} and {gone.name!r} merged", program.with_steps(steps))


def _exchanged(scope: Scope, old: Region, new: Region) -> Scope:
    return tuple(new if context == old else context for context in scope)


def annotate_statement(program: Program, chance: random.Random) -> Iterator[Rewrite]:
    """Put an annotation around one statement that has none, or take away the one that it has."""
    places = list(range(len(program.steps)))
    chance.shuffle(places)
    for at in places:
        step = program.steps[at]
        if step.region is None:
            changed = replace(step, scope=(*step.scope, Region("alone")))
            yield Rewrite(f"an annotation around statement {at}", _with_step(program, at, changed))
        elif operator_named(step.operator).operands:
            plain = replace(step, scope=step.contexts)
            yield Rewrite(f"no annotation around statement {at}", _with_step(program, at, plain))


# Statements


def exchange_statements(program: Program, chance: random.Random) -> Iterator[Rewrite]:
    """Exchange two neighbours that have nothing to do with each other; both keep their scope."""
    memory = _memory(program)
    if memory is None:
        return
    places = list(range(len(program.steps) - 1))
    chance.shuffle(places)
    for at in places:
        first, second = program.steps[at : at + 2]
        if _independent(program, first, second, memory):
            steps = (*program.steps[:at], second, first, *program.steps[at + 2 :])
            yield Rewrite(f"statements {at} and {at + 1} exchanged", program.with_steps(steps))


def _memory(program: Program) -> dict[int, int] | None:
    """Return by value which memory it lies in; None where the program cannot be built."""
    builder = Builder(program.arguments, program.blocks)
    found = {number: memory_of(value.tensor) for number, value in builder.values.items()}
    kept = [value.tensor for value in builder.values.values()]
    for step in program.steps:
        try:
            builder.add(step)
        except Refused:
            return None
        for number in step.results:
            if number in builder.values:
                found[number] = memory_of(builder.values[number].tensor)
                kept.append(builder.values[number].tensor)  # memory that is freed is soon another value's
    return found


def _independent(program: Program, first: Step, second: Step, memory: dict[int, int]) -> bool:
    if draws(first, program.blocks) or draws(second, program.blocks) or set(first.results) & set(second.operands):
        return False
    written = [
        {memory.get(step.operands[at]) for at in operator_named(step.operator).writes} for step in (first, second)
    ]
    touched = [{memory.get(number) for number in (*step.operands, *step.results)} for step in (first, second)]
    return not (written[0] & touched[1] or written[1] & touched[0])


#: What may stand between a value and its reader: operators with fixed parameters.
_IDENTITIES = (
    ("a clone", "clone", ()),
    ("contiguous()", "contiguous", ()),
    ("a view of all elements", "alias", ()),
    ("a multiplication by 1", "mul_number", (("value", 1.0),)),
)

#: Families of operators that read their operands and make new memory.
_READERS = ("pointwise", "comparison", "reduction", "matmul", "norm", "integer")


def insert_identity(program: Program, chance: random.Random) -> Iterator[Rewrite]:
    """Put an operator that changes nothing between a value and one reader of it, in the reader's region or in none."""
    places = [
        (at, position)
        for at, step in enumerate(program.steps)
        if operator_named(step.operator).family in _READERS and not operator_named(step.operator).writes
        for position in range(len(step.operands))
    ]
    chance.shuffle(places)
    free = 1 + max((number for step in program.steps for number in step.results), default=len(program.arguments))
    free = max(free, len(program.arguments))
    for at, position in places[:4]:
        step = program.steps[at]
        what, name, parameters = chance.choice(_IDENTITIES)
        scope = chance.choice((step.contexts, step.scope))
        inserted = Step(name, (step.operands[position],), parameters, (free,), scope)
        operands = tuple(free if index == position else number for index, number in enumerate(step.operands))
        steps = (*program.steps[:at], inserted, replace(step, operands=operands), *program.steps[at + 1 :])
        yield Rewrite(f"{what} before statement {at}", program.with_steps(steps), same_operators=False)


def _with_step(program: Program, at: int, step: Step) -> Program:
    return program.with_steps((*program.steps[:at], step, *program.steps[at + 1 :]))


Kind = Callable[[Program, random.Random], Iterator[Rewrite]]

#: All kinds of rewrites.
KINDS: tuple[Kind, ...] = (
    move_border,
    split_region,
    merge_regions,
    annotate_statement,
    exchange_statements,
    insert_identity,
)


ORACLES = (
    Oracle(
        "rewrites",
        "A program with a region's border moved, a copy put in, or two statements exchanged gives the same.",
        check_rewrites,
        every=4,
        place=170,
        fails_in_capture=True,
        after_parity=True,
        scripted=True,
    ),
)
