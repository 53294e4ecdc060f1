"""What is special about a program, as a set of words: to name findings by, and to see what generators generate."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from pytest_regional.fuzz.model.program import Context, Program, Region, Step
from pytest_regional.fuzz.operators.table import operator_named


def features_of(program: Program) -> frozenset[str]:
    """Return the features of ``program``: ``op:mul``, ``family:pointwise``, ``dtype:bfloat16``, ``region:nested``, ...

    A reduced program keeps those that its failure needs: whatever can be taken away, the reducer took.
    """
    return frozenset({*_of_inputs(program), *_of_steps(program), *_of_regions(program), *_of_outputs(program)})


def _of_inputs(program: Program) -> Iterator[str]:
    for argument in program.arguments:
        if argument.alias_of is not None:
            yield "input:alias"
            yield f"part:{argument.part}"
            continue
        if argument.dtype != "float32":
            yield f"dtype:{argument.dtype}"
        if argument.layout != "dense":
            yield f"layout:{argument.layout}"
        if argument.content in ("nonfinite", "whole", "places", "large", "edges"):
            yield f"input:{argument.content}"
        if argument.dynamic:
            yield "input:dynamic"
        if 0 in argument.shape:
            yield "input:empty"
        if 1 in argument.shape:
            yield "input:size one"
    if program.training and any(argument.requires_grad for argument in program.arguments):
        yield "training"
    if program.dynamic:
        yield "dynamic"
    if program.partitioner == "min_cut":
        yield "partitioner:min_cut"
    for name, _ in program.settings:
        yield f"setting:{name}"


def _of_steps(program: Program) -> Iterator[str]:
    for step in program.all_steps():
        operator = operator_named(step.operator)
        yield f"op:{operator.name}"
        yield f"family:{operator.family}"
        if operator.writes:
            yield "writes"
            if any(step.operands[position] < len(program.arguments) for position in operator.writes):
                yield "writes:input"
        if operator.uses_rng:
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
    if any(region.name is None for region in program.regions):
        yield "region:default"
    if any(step.operator == "nothing" for step in steps):
        yield "region:empty"
    if _is_left_and_entered(steps):
        yield "region:entered again"
    if _has_near_duplicates(steps):
        yield "region:near duplicates"
    yield from _of_calls(program)


def _of_calls(program: Program) -> Iterator[str]:
    calls = [(index, step.region is not None) for step in program.steps for index in step.blocks]
    if max(Counter(index for index, _ in calls).values(), default=0) > 1:
        yield "block:called several times"
    if any((index, not inside) in calls for index, inside in calls):
        yield "block:inside and outside a region"


def _has_near_duplicates(steps: Sequence[Step]) -> bool:
    """Tell whether two runs of at least two steps, each in one region, have the same operators."""
    runs = [
        tuple(step.operator for step in run)
        for region, run in itertools.groupby(steps, lambda step: step.region)
        if region is not None
    ]
    long = [run for run in runs if len(run) > 1]
    return len(set(long)) < len(long)


def _is_left_and_entered(steps: Sequence[Step]) -> bool:
    """Tell whether a region is left for any other step and entered again."""
    runs = [region for region, _ in itertools.groupby(step.region for step in steps)]
    return any(runs.count(region) > 1 for region in set(runs) if region is not None)


def _is_interleaved(steps: Sequence[Step]) -> bool:
    """Tell whether some region is left and entered again after another region's step."""
    order = [step.region for step in steps if step.region is not None]
    left: set[Region] = set()
    for before, after in itertools.pairwise(order):
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


#: Of 100 programs as :func:`pytest_regional.strategies.programs` draws them, at least how many have each feature.
DECLARED: Mapping[str, float] = MappingProxyType(
    {
        "region": 55,
        "region:several": 25,
        "region:nested": 12,
        "region:configs": 12,
        "region:interleaved": 8,
        "region:feeds a region": 8,
        "region:entered again": 15,
        "region:default": 2,
        "region:empty": 1,
        "region:after": 0.3,
        "region:in a block": 10,
        "region:near duplicates": 1.5,
        "block:called several times": 2,
        "block:inside and outside a region": 0.2,
        "context:autocast": 3,
        "context:no_grad": 3,
        "context:tag": 5,
        "training": 20,
        "dynamic": 1.5,
        "dtype:float64": 10,
        "dtype:bfloat16": 9,
        "dtype:float16": 9,
        "dtype:int64": 8,
        "dtype:int32": 1.5,
        "dtype:uint8": 1.5,
        "dtype:int8": 1.5,
        "dtype:int16": 1.5,
        "dtype:bool": 6,
        "layout:transposed": 6,
        "layout:strided": 6,
        "layout:offset": 6,
        "layout:expanded": 6,
        "layout:channels_last": 3,
        "layout:tail": 6,
        "layout:margin": 6,
        "layout:zero_stride": 3,
        "layout:channels_last_transposed": 0.3,
        "input:alias": 12,
        "part:whole": 0.3,
        "part:same": 0.3,
        "part:view": 0.3,
        "part:tail": 0.3,
        "part:head": 0.3,
        "part:first_half": 0.3,
        "part:second_half": 0.3,
        "part:transposed": 0.3,
        "part:columns": 0.3,
        "part:even": 0.3,
        "part:odd": 0.3,
        "part:row": 0.3,
        "part:expanded": 0.3,
        "input:dynamic": 10,
        "input:nonfinite": 1,
        "input:whole": 12,
        "input:places": 5,
        "input:large": 1,
        "input:edges": 5,
        "input:empty": 1.5,
        "input:size one": 15,
        "output:input": 8,
        "output:duplicate": 8,
        "output:unused value": 7,
        "writes": 15,
        "writes:input": 3,
        "draws": 7,
        "family:pointwise": 55,
        "family:reduction": 12,
        "family:view": 9,
        "family:copy": 8,
        "family:matmul": 8,
        "family:cast": 3,
        "family:factory": 9,
        "family:write": 12,
        "family:out": 2,
        "family:norm": 3,
        "family:index": 4,
        "family:scatter": 2.5,
        "family:integer": 5,
        "family:comparison": 4,
        "family:convolution": 1.5,
        "family:sort": 4,
        "family:random": 6,
        "family:custom": 5,
        "family:call": 1,
        "family:checkpoint": 1,
        "family:nested": 1,
        "family:cond": 1,
        "family:loop": 1,
        "family:transform": 2,
        "family:statement": 1,
    }
)
