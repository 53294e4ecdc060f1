"""What a drawn program may need before it can be judged: writes taken out, draws returned, an order declared."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_regional.fuzz.building import Builder, Refused
from pytest_regional.fuzz.liveness import draws, live_values
from pytest_regional.fuzz.operators.table import operator_named
from pytest_regional.fuzz.program import Context, Program, Region, Step


def repaired(builder: Builder, outputs: Sequence[int], *, training: bool) -> tuple[Builder, list[int]]:
    """Return all that is drawn, and leave out the last writes until eager can backpropagate from the outputs.

    Where there are none, it is the last step that goes: some operators of low precision have no derivative.
    """
    kept = [*outputs, *builder.dead_draws(outputs)]
    while training and not builder.backpropagates(kept):
        builder = _replayed(builder, _last_write(builder.steps))
        kept = [number for number in kept if number in builder.values] or [0]
        kept += builder.dead_draws(kept)
    return builder, kept


def _last_write(steps: Sequence[Step]) -> int:
    writes = [place for place, step in enumerate(steps) if operator_named(step.operator).writes]
    return writes[-1] if writes else len(steps) - 1


def _replayed(builder: Builder, without: int) -> Builder:
    """Build the same once more without one step, and without those that then do not fit."""
    again = Builder(builder.arguments, builder.blocks, builder.without)
    for place, step in enumerate(builder.steps):
        if place != without:
            try:
                again.add(step)
            except Refused:
                continue
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

    steps = tuple(replace(step, scope=tuple(map(changed, step.scope))) for step in program.steps)
    return replace(program, steps=steps)


def _pairs_to_turn_round(program: Program) -> Iterator[tuple[str | int, str | int]]:
    if any(operator_named(step.operator).writes or draws(step) or step.blocks for step in program.steps):
        return  # they have an order of their own
    for first, second in _ordered_pairs(program):
        ahead, behind = ([step for step in program.steps if _stands_in(step, name)] for name in (first, second))
        made = {number for step in ahead for number in step.results}
        read = live_values(program.steps, [number for step in behind for number in step.operands])
        if made and not made & read and all(map(_computes, (ahead, behind))):
            yield second, first


def _computes(steps: Sequence[Step]) -> bool:
    """Tell whether it matters when ``steps`` run: a view computes nothing."""
    return any(step.results and operator_named(step.operator).family != "view" for step in steps)


def _stands_in(step: Step, name: str | int) -> bool:
    return any(region.name == name for region in step.regions)


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


__all__ = ["repaired", "with_order"]
