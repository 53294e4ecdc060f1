"""What a drawn program may need before it can be judged: writes taken out, impossible orders taken back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_regional.fuzz.building import Builder, Refused
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
    again = Builder(builder.arguments, builder.blocks)
    for place, step in enumerate(builder.steps):
        if place != without:
            try:
                again.add(step)
            except Refused:
                continue
    return again


def with_possible_order(program: Program) -> Program:
    """Return ``program`` without the ``after`` of regions that the program itself runs earlier."""
    if not any(region.after for region in _all_regions(program)) or _keeps_order(program):
        return program

    def changed(steps: Sequence[Step]) -> tuple[Step, ...]:
        return tuple(replace(step, scope=tuple(map(_unordered, step.scope))) for step in steps)

    blocks = tuple(replace(block, steps=changed(block.steps)) for block in program.blocks)
    return replace(program, steps=changed(program.steps), blocks=blocks)


def _all_regions(program: Program) -> list[Region]:
    return [context for step in program.all_steps() for context in step.scope if isinstance(context, Region)]


def _unordered(context: Region | Context) -> Region | Context:
    return replace(context, after=()) if isinstance(context, Region) else context


def _keeps_order(program: Program) -> bool:
    """Tell whether every region stands wholly behind those that it is to run after, and none is in a block."""
    if any(step.regions for block in program.blocks for step in block.steps):
        return False
    places: dict[object, list[int]] = {}
    for place, step in enumerate(program.steps):
        if step.region is not None:
            places.setdefault(step.region.name, []).append(place)
    return all(
        region.name not in region.after
        and all(other in places and max(places[other]) < min(places[region.name]) for other in region.after)
        for step in program.steps
        if (region := step.region) is not None
    )


__all__ = ["repaired", "with_possible_order"]
