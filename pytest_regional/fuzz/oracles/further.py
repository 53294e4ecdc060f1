"""Oracles of one function each: further calls, memory that is shared, random numbers, kernels that are refuted.

``further_calls`` calls the compiled program with other strides and other sizes, and as at first. ``alias_probe`` writes
to each result and input; ``input_forms`` gives inputs of one storage in two forms. ``own_random`` judges the backend's
own random numbers. ``verified``: no kernel of the program is refuted, for any size that the guards allow.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from pytest_regional._torch.tracing import is_zero_tensor
from pytest_regional.fuzz.model.arguments import LAYOUTS, TensorInput
from pytest_regional.fuzz.model.building import check_buildable
from pytest_regional.fuzz.model.claims import Memory
from pytest_regional.fuzz.model.program import Program, ProgramError
from pytest_regional.fuzz.operators.table import operator_named
from pytest_regional.fuzz.oracles.example_run import ExampleRun, ExpectedResults
from pytest_regional.fuzz.oracles.oracle import NoClaim, Oracle, kinds_of
from pytest_regional.fuzz.oracles.parity import mismatches_of, raise_failure, without_fake_strides
from pytest_regional.harness.parity.captured import dense_value
from pytest_regional.harness.parity.compare import BadProgramError, Mismatch
from pytest_regional.harness.parity.inputs import other_form
from pytest_regional.harness.parity.random_code import RUNS, random_mismatches, reseeded
from pytest_regional.harness.parity.state import same_bytes
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


def check_verified(example: ExampleRun) -> None:
    """Raise where a property of a kernel is refuted; the refutation was replayed by the emulator."""
    verification = example.regional.verification
    if verification is None:
        raise NoClaim("kernels are verified with --regional-verify only")
    kernels = verification.taken()
    refuted = [(kernel, outcome) for kernel in kernels for outcome in kernel.outcomes if outcome.verdict == "refuted"]
    if refuted:
        told = "; ".join(f"{kernel.kernel}: {outcome.property}: {outcome.reason}" for kernel, outcome in refuted[:4])
        raise example.violation("verified", "compile", told, origin=", ".join(sorted({o.property for _, o in refuted})))
    if not kernels:
        raise NoClaim("no kernel was generated")


def check_own_random(example: ExampleRun) -> None:
    """Raise where dtype, shape, state, determinism or distribution of what the backend draws is not as in eager."""
    if not any(operator_named(step.operator).uses_rng for step in example.program.all_steps()):
        raise NoClaim("it draws no random numbers")
    if not example.expected[0].eager.rng_consumed:
        raise NoClaim("it draws no random numbers with these inputs")
    options = replace(example.options(example.program), fallback_random=False)
    compiled = example.regional._compile_with(example.program.function, options)
    seeds = [reseeded(example.regional.seed, run) for run in range(RUNS)]
    inputs = example.expected[0].inputs
    first = example.execute(compiled, inputs, draws=seeds[0])
    if first.exception is not None:
        root = root_of(first.exception)
        raise example.violation(
            "own_random",
            "compile",
            f"with the backend's own random numbers it raises {type(root).__name__}: {message_of(root)}",
            origin=origin_of(first.exception, getattr(example.regional._spec.factory, "__module__", "")),
        ) from first.exception
    with example.regional.observer.paused():
        eager = [example.execute(example.program.function, inputs, draws=seed) for seed in seeds]
    runs = [first, *(example.execute(compiled, inputs, draws=seed) for seed in (*seeds[1:], seeds[0]))]
    found = random_mismatches(eager, runs[:-1], runs[-1])
    if found:
        detail = f"with the backend's own random numbers: {'; '.join(map(str, found[:4]))}"
        raise example.violation("own_random", "run", detail, origin=kinds_of(found))


def check_alias_probe(example: ExampleRun) -> None:
    """Raise where a write to a result or an input shows elsewhere than in eager, or in a further call."""
    run = example.cold
    if run.error is not None:
        raise NoClaim("the program does not run")
    eager, ours = moved_by_writes(example.expected[0].eager.live), moved_by_writes(run.executions[0].live)
    found = [
        Mismatch(name, "alias", f"a write to it shows in {_named(ours[name])}, in eager in {_named(eager[name])}")
        for name in eager
        if name in ours and eager[name] != ours[name]
    ]
    if not found:
        again = example.execute(run.compiled, example.expected[0].inputs)
        expected = example.expected[0]
        found = [
            Mismatch(mismatch.where, mismatch.kind, f"after writes to the results of other calls: {mismatch.detail}")
            for mismatch in without_fake_strides(example, expected.inputs, expected.compared(again).mismatches)
        ]
    if found:
        detail = "; ".join(map(str, found[:4]))
        raise example.violation("alias_probe", "run", detail, origin=kinds_of(found))


def moved_by_writes(live: Mapping[str, torch.Tensor]) -> dict[str, frozenset[str]]:
    """Write to each tensor in turn, and return by its name the names of all others that hold other bytes then.

    The tensors keep what was written. A tensor that no write changes is left out, and so is one that cannot be written
    to, as it is zeros without memory.
    """
    moved: dict[str, frozenset[str]] = {}
    with torch.no_grad():
        for name, tensor in live.items():
            if is_zero_tensor(tensor):
                continue
            before = {other: dense_value(one) for other, one in live.items()}
            _change(tensor.detach())
            changed = frozenset(other for other, one in live.items() if not same_bytes(dense_value(one), before[other]))
            if name in changed:
                moved[name] = changed - {name}
    return moved


def _change(tensor: torch.Tensor) -> None:
    """Change each element of ``tensor``; where several are one in memory, that one."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and stride == 0:
            tensor = tensor.narrow(dim, 0, 1)
    if tensor.dtype == torch.bool:
        tensor.logical_not_()
    else:
        # Adding 1 leaves NaN, infinity and large numbers as they are.
        tensor.copy_(torch.where(tensor == 1, torch.full_like(tensor, 2), torch.ones_like(tensor)))


def _named(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "nothing else"


def check_input_forms(example: ExampleRun) -> None:
    """Raise where the program, called with inputs that use their common storage in another form, differs from eager."""
    form = other_form(example.expected[0].inputs)
    if form is None:
        raise NoClaim("no inputs use one storage")
    if form == "storage" and example.trains and Memory(example.program).inputs_written:
        raise NoClaim("AOTAutograd trains with writes to inputs of one storage only if they are views of one tensor")
    other = example.of(example.program, form=form)
    try:
        _ = other.expected
    except BadProgramError as error:
        raise NoClaim("eager refuses the program with inputs in that form") from error
    raise_failure(other, other.cold, "input_forms")
    mismatches = without_fake_strides(other, other.expected[0].inputs, mismatches_of(other, other.cold))
    if mismatches:
        said = "views of one tensor" if form == "views" else "tensors of one storage that are no views"
        detail = f"with inputs as {said}: {'; '.join(map(str, mismatches[:4]))}"
        raise example.violation("input_forms", "run", detail, origin=kinds_of(mismatches))


ORACLES = (
    Oracle(
        "further_calls",
        "The compiled program gives eager's results for other strides and sizes, and then for the first ones again.",
        check_further_calls,
        every=4,
        place=120,
        fails_in_capture=True,
        after_parity=True,
    ),
    Oracle(
        "alias_probe",
        "A write to a result or an input shows where it does in eager, and in no further call.",
        check_alias_probe,
        place=70,
        fails_in_capture=True,
        after_parity=True,
    ),
    Oracle(
        "input_forms",
        "Inputs of one storage may be views of one tensor, or no views.",
        check_input_forms,
        every=2,
        place=150,
        fails_in_capture=True,
        after_parity=True,
    ),
    Oracle(
        "own_random",
        "The backend's own random numbers have eager's dtypes, state and distribution, and one seed gives them again.",
        check_own_random,
        modes=("emulated", "native"),
        requires=("rng",),
        every=2,
        place=160,
        after_parity=True,
    ),
    Oracle(
        "verified",
        "No kernel is refuted for any size that the guards allow: accesses, races, elements left out.",
        check_verified,
        modes=("emulated",),
        place=30,
    ),
)

__all__ = ["ORACLES", "moved_by_writes"]
