"""What programs ask of a backend, by capability: drawn is what it claims, and nothing else.

:func:`needs_of` says what a program needs; :func:`restricted` takes annotations away that a backend has no use for. The
generator itself leaves out operators and writes (:class:`~pytest_regional.fuzz.model.building.Builder`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from pytest_regional.fuzz.model.evaluation import Memory
from pytest_regional.fuzz.model.program import Context, Parameter, Program, Region, Scope, Step
from pytest_regional.fuzz.operators.operator import Operator
from pytest_regional.fuzz.operators.table import operator_named

if TYPE_CHECKING:
    from pytest_regional.backends.spec import BackendSpec

#: The capabilities that a program may need; the others are about caches, counters and passes.
DRAWN = (
    "aliasing",
    "backward",
    "channels_last",
    "custom_ops",
    "distinct_region_configs",
    "dynamic_shapes",
    "higher_order_operators",
    "interleaved_regions",
    "mutation",
    "nested_regions",
    "region_configs",
    "region_ids",
    "region_order",
    "regions",
    "rng",
)

#: Families whose operators are higher-order ones in a graph.
HIGHER_ORDER = ("checkpoint", "nested", "cond", "loop", "transform")


def disclaimed(spec: BackendSpec) -> frozenset[str]:
    """Return the capabilities that programs may need and the backend disclaims."""
    return frozenset(name for name in DRAWN if not spec.supports(name))


def needs_of_operator(operator: Operator) -> frozenset[str]:
    """Return what ``operator`` needs wherever it stands."""
    needs = set()
    if operator.uses_rng:
        needs.add("rng")
    if operator.family in HIGHER_ORDER or operator.name.startswith("function_"):
        needs.add("higher_order_operators")
    elif operator.family == "custom":
        needs.add("custom_ops")
    if operator.name == "channels_last":
        needs.add("channels_last")
    return frozenset(needs)


def needs_of(program: Program) -> frozenset[str]:
    """Return the capabilities that a backend has to claim for ``program`` to be its business."""
    return frozenset({*_of_values(program), *_of_operators(program), *_of_regions(program), *_of_memory(program)})


def _of_values(program: Program) -> Iterator[str]:
    for argument in program.arguments:
        if argument.requires_grad and program.training:
            yield "backward"
        if argument.layout.startswith("channels_last"):
            yield "channels_last"
        if argument.alias_of is not None:
            yield "aliasing"
        if argument.dynamic or program.dynamic:
            yield "dynamic_shapes"


def _of_operators(program: Program) -> Iterator[str]:
    for step in program.all_steps():
        yield from needs_of_operator(operator_named(step.operator))


def _of_memory(program: Program) -> Iterator[str]:
    memory = Memory(program)
    if memory.inputs_written:
        yield "mutation"
    if memory.outputs_shared:
        yield "aliasing"


def _of_regions(program: Program) -> Iterator[str]:
    if not program.regions:
        return
    yield "regions"
    keys = list(_keys(program))
    if len({name for name, _ in keys}) > 1:
        yield "region_ids"
    if any(region.configs for region in program.regions) or any(configs for _, configs in keys):
        yield "region_configs"
    if len(set(keys)) > len({name for name, _ in keys}):
        yield "distinct_region_configs"
    if _interleave(keys):
        yield "interleaved_regions"
    if any(region.after for region in program.regions):
        yield "region_order"
    if any(_is_nested(program, step) for step in program.steps):
        yield "nested_regions"


# Regions in the order in which they run

Key: TypeAlias = "tuple[str | int | None, tuple[tuple[str, Parameter], ...]]"
"""Id and settings of a region, as they hold: settings of an outer annotation stay unless the inner one names them."""


def _key(regions: tuple[Region, ...]) -> Key | None:
    if not regions:
        return None
    configs: dict[str, Parameter] = {}
    for region in regions:
        configs.update(region.configs)
    return regions[-1].name, tuple(sorted(configs.items(), key=lambda item: item[0]))


def _keys(program: Program) -> Iterator[Key]:
    """Yield the regions of all operators in the order in which they run, bodies of blocks included."""
    for step in program.steps:
        inner = [one for index in step.blocks for one in program.blocks[index].steps]
        for regions in [(*step.regions, *one.regions) for one in inner] or [step.regions]:
            key = _key(regions)
            if key is not None:
                yield key


def _interleave(keys: list[Key]) -> bool:
    """Tell whether a region is left for another one and entered again: they may wait for each other."""
    left: set[Key] = set()
    for before, after in itertools.pairwise(keys):
        if before != after:
            left.add(before)
            if after in left:
                return True
    return False


def _is_nested(program: Program, step: Step) -> bool:
    """Tell whether ``step`` is a higher-order operator with a region around it or in its body."""
    if operator_named(step.operator).family not in HIGHER_ORDER:
        return False
    return bool(step.regions) or any(one.regions for index in step.blocks for one in program.blocks[index].steps)


# Less of them


def restricted(program: Program, without: frozenset[str]) -> Program:
    """Return ``program`` with fewer annotations, so that none needs a capability in ``without``."""
    if not program.regions:
        return program
    if "regions" in without:
        return _with_regions(program, lambda step: ())
    if "nested_regions" in without:
        program = _without_nested(program)
    if "region_configs" in without:
        program = _with_regions(program, lambda step: tuple(replace(one, configs=()) for one in step.regions))
    if "region_ids" in without and program.regions:
        only = program.regions[0].name
        program = _with_regions(program, lambda step: tuple(replace(one, name=only) for one in step.regions))
    if without & {"distinct_region_configs", "interleaved_regions"}:
        program = _one_after_the_other(program, without)
    return program


def _without_nested(program: Program) -> Program:
    called = {index for step in program.steps if _is_nested(program, step) for index in step.blocks}
    blocks = tuple(
        replace(block, steps=tuple(_with(step, ()) for step in block.steps)) if index in called else block
        for index, block in enumerate(program.blocks)
    )
    steps = tuple(_with(step, ()) if _is_nested(program, step) else step for step in program.steps)
    return replace(program, steps=steps, blocks=blocks)


def _one_after_the_other(program: Program, without: frozenset[str]) -> Program:
    """Return ``program`` with one annotation around a step, none in blocks, and what interleaves unannotated."""
    configs: dict[str | int | None, tuple[tuple[str, Parameter], ...]] = {}
    left: set[Key] = set()
    before: Key | None = None
    steps = []
    for step in program.steps:
        key = _key(step.regions)
        if key is not None and "distinct_region_configs" in without:
            key = key[0], configs.setdefault(*key)
        if key in left and "interleaved_regions" in without:
            key = None
        if key is not None:
            left |= {before} if before not in (None, key) else set()
            before = key
        steps.append(_with(step, () if key is None else (Region(*key),)))
    blocks = tuple(replace(block, steps=tuple(_with(step, ()) for step in block.steps)) for block in program.blocks)
    return replace(program, steps=tuple(filter(_says_something, steps)), blocks=blocks)


def _with_regions(program: Program, chosen: Callable[[Step], tuple[Region, ...]]) -> Program:
    """Return ``program`` with other annotations around its steps, and around those of its blocks."""

    def changed(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        return tuple(filter(_says_something, (_with(step, chosen(step)) for step in steps)))

    blocks = tuple(replace(block, steps=changed(block.steps)) for block in program.blocks)
    return replace(program, steps=changed(program.steps), blocks=blocks)


def _with(step: Step, regions: tuple[Region, ...]) -> Step:
    scope: Scope = (*(context for context in step.scope if isinstance(context, Context)), *regions)
    return replace(step, scope=scope)


def _says_something(step: Step) -> bool:
    """Tell whether ``step`` is more than a statement of nothing without a region around it."""
    return bool(step.operands or step.results or step.regions)


__all__ = ["DRAWN", "disclaimed", "needs_of", "needs_of_operator", "restricted"]
