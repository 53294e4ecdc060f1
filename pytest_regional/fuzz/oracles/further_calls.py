"""The oracle ``further_calls``: the compiled program called with other strides and other sizes, and as at first."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pytest_regional.fuzz.model.arguments import LAYOUTS, TensorInput
from pytest_regional.fuzz.model.building import check_buildable
from pytest_regional.fuzz.model.program import Program, ProgramError
from pytest_regional.fuzz.oracles.example_run import ExampleRun, ExpectedResults
from pytest_regional.fuzz.oracles.oracle import NoClaim, Oracle, kinds_of
from pytest_regional.fuzz.oracles.parity import without_fake_strides
from pytest_regional.harness.parity.compare import BadProgramError
from pytest_regional.harness.raised import message_of, origin_of, root_of

#: What sizes grow by: the first other size makes Dynamo compile again, with symbols, and those serve the second.
_GROWTH = (1, 4)


def check_further_calls(example: ExampleRun) -> None:
    """Raise where a call with other inputs fails or differs from eager, or where the first ones then do."""
    if example.cold.error is not None:
        raise NoClaim("the program does not run")
    example.regional.reset(keep_code=True)  # Dynamo has other calls of it by now
    compiled = example.run(example.program, calls=1).compiled
    calls = [*_with_other_strides(example.program), *_with_other_sizes(example.program)]
    checked = 0
    for what, program in calls:
        try:
            expected = example.expected_of(example.program.function, program.inputs(example.regional.device, 3))
        except BadProgramError:
            continue
        _check(example, compiled, expected, f"called with {what}")
        checked += 1
    if not checked:
        raise NoClaim("eager takes the program with no other strides or sizes")
    with example.regional.no_compile():
        _check(example, compiled, example.expected[1], "called as at first, behind these calls")


def _check(example: ExampleRun, compiled: Any, expected: ExpectedResults, what: str) -> None:
    execution = example.execute(compiled, expected.inputs)
    if execution.exception is not None:
        root = root_of(execution.exception)
        raise example.violation(
            "further_calls",
            "run",
            f"{what}: eager runs, the backend raises {type(root).__name__}: {message_of(root)}",
            origin=origin_of(execution.exception, getattr(example.regional._spec.factory, "__module__", "")),
        ) from execution.exception
    mismatches = without_fake_strides(example, expected.inputs, expected.compared(execution).mismatches)
    if mismatches:
        detail = f"{what}: {'; '.join(map(str, mismatches[:4]))}"
        raise example.violation("further_calls", "run", detail, origin=kinds_of(mismatches))


def _with_other_strides(program: Program) -> Iterator[tuple[str, Program]]:
    chance = random.Random(program.source)
    changed = tuple(_in_another_layout(argument, chance) for argument in program.arguments)
    if changed != program.arguments:
        yield from _buildable("other strides", replace(program, arguments=changed))


def _in_another_layout(argument: TensorInput, chance: random.Random) -> TensorInput:
    """Return an argument with other strides; one that aliases another, or whose elements overlap, as it is."""
    if argument.alias_of is not None or argument.layout == "expanded" or not argument.shape:
        return argument
    least = {"transposed": 2, "channels_last": 4}
    others = [
        layout
        for layout in LAYOUTS
        if layout not in (argument.layout, "expanded") and len(argument.shape) >= least.get(layout, 1)
    ]
    return replace(
        argument, layout=chance.choice([one for one in others if one != "channels_last" or _is_image(argument)])
    )


def _is_image(argument: TensorInput) -> bool:
    return len(argument.shape) == 4


def _with_other_sizes(program: Program) -> Iterator[tuple[str, Program]]:
    """Yield the program with one size larger, everywhere; of several sizes the first that eager takes."""
    sizes = dict.fromkeys(size for argument in program.arguments for size in argument.shape if size > 1)
    for size in sizes:
        found = []
        for growth in _GROWTH:
            larger = tuple(_resized(argument, size, size + growth) for argument in program.arguments)
            found += _buildable(f"{size + growth} for {size}", replace(program, arguments=larger))
        if len(found) == len(_GROWTH):
            yield from found
            return


def _resized(argument: TensorInput, old: int, new: int) -> TensorInput:
    return replace(argument, shape=tuple(new if size == old else size for size in argument.shape))


def _buildable(what: str, program: Program) -> list[tuple[str, Program]]:
    try:
        check_buildable(program)
    except ProgramError:
        return []
    return [(what, program)]


ORACLES = (
    Oracle(
        "further_calls",
        "The compiled program gives eager's results for other strides and sizes, and then for the first ones again.",
        check_further_calls,
        every=4,
    ),
)

__all__ = ["ORACLES"]
