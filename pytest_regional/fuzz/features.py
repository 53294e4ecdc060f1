"""What is special about a program, as a set of words: to name findings by, and to see what generators generate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_regional.fuzz.operators.table import operator_named
from pytest_regional.fuzz.program import Context, Program, Region, Step


def features_of(program: Program) -> frozenset[str]:
    """Return the features of ``program``: ``op:mul``, ``family:pointwise``, ``dtype:bfloat16``, ``region:nested``, ...

    A reduced program keeps those that its failure needs: whatever can be taken away, the reducer took.
    """
    return frozenset({*_of_inputs(program), *_of_steps(program), *_of_regions(program), *_of_outputs(program)})


def _of_inputs(program: Program) -> Iterator[str]:
    for argument in program.arguments:
        if argument.alias_of is not None:
            yield "input:alias"
            continue
        if argument.dtype != "float32":
            yield f"dtype:{argument.dtype}"
        if argument.layout != "dense":
            yield f"layout:{argument.layout}"
        if argument.content == "nonfinite":
            yield "input:nonfinite"
        if argument.dynamic:
            yield "input:dynamic"
        if 0 in argument.shape:
            yield "input:empty"
    if program.training and any(argument.requires_grad for argument in program.arguments):
        yield "training"
    if program.dynamic:
        yield "dynamic"


def _of_steps(program: Program) -> Iterator[str]:
    for step in program.all_steps():
        operator = operator_named(step.operator)
        yield f"op:{operator.name}"
        yield f"family:{operator.family}"
        if operator.writes:
            yield "writes"
        if operator.draws:
            yield "draws"
        for context in step.scope:
            if isinstance(context, Context):
                yield f"context:{context.kind}"
    if any(step.region for block in program.blocks for step in block.steps):
        yield "region:in a block"


def _of_regions(program: Program) -> Iterator[str]:
    steps = program.steps
    if program.regions:
        yield "region"
    if len(program.regions) > 1:
        yield "region:several"
    if any(len(step.regions) > 1 for step in steps):
        yield "region:nested"
    if any(region.configs for region in program.regions):
        yield "region:configs"
    if any(region.after for region in program.regions):
        yield "region:after"
    if _is_interleaved(steps):
        yield "region:interleaved"
    if _feeds_another(steps):
        yield "region:feeds a region"


def _is_interleaved(steps: Sequence[Step]) -> bool:
    """Tell whether some region is left and entered again after another region's step."""
    order = [step.region for step in steps if step.region is not None]
    left: set[Region] = set()
    for before, after in zip(order, order[1:], strict=False):
        if before != after:
            left.add(before)
            if after in left:
                return True
    return False


def _feeds_another(steps: Sequence[Step]) -> bool:
    made = {number: step.region for step in steps for number in step.results}
    return any(
        step.region is not None and made.get(number) not in (None, step.region)
        for step in steps
        for number in step.operands
    )


def _of_outputs(program: Program) -> Iterator[str]:
    if any(number < len(program.arguments) for number in program.outputs):
        yield "output:input"
    if len(set(program.outputs)) < len(program.outputs):
        yield "output:duplicate"
    used = {number for step in program.steps for number in step.operands}
    if any(number not in used and number not in program.outputs for step in program.steps for number in step.results):
        yield "output:unused value"
