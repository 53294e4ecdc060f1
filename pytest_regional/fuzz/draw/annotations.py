"""Other annotations on a drawn program: to draw them anew takes a small part of what it takes to draw a program."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from pytest_regional.fuzz.draw.encoding import SCOPES, with_order
from pytest_regional.fuzz.graph_capture import needs_dynamo
from pytest_regional.fuzz.model.claims import restricted
from pytest_regional.fuzz.model.program import Context, Program, Region, Scope

#: What a statement is annotated with, the contexts that set state left out.
_REGIONS: tuple[Scope, ...] = tuple(
    dict.fromkeys(tuple(context for context in scope if isinstance(context, Region)) for scope in SCOPES)
)

#: So many graphs come of a drawn program in mode ``aten``: to draw one takes as long as to check several.
VARIANTS = 16

#: Of the variants of a program, one in so many asks for an order of its regions.
_ORDER_EVERY = 4


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
    """Return ``program`` with each statement in one of three annotations, or in none."""
    drawn = [chance.choice(_REGIONS) for _ in range(3)]
    steps = tuple(
        replace(
            step,
            scope=(
                *(context for context in step.scope if isinstance(context, Context)),
                *chance.choice((*drawn, ())),
            ),
        )
        for step in program.steps
    )
    varied = restricted(program.with_steps(steps), without)
    orders = chance.randrange(_ORDER_EVERY) == 0 and "region_order" not in without
    return with_order(varied) if orders else varied


__all__ = ["VARIANTS", "reannotated", "with_other_annotations"]
