"""Oracles of further calls, of memory that is shared, random numbers, kernels that are refuted, and of repetition.

``further_calls`` calls the compiled program with other strides and other sizes, and as at first. ``alias_probe`` writes
to each result and input; ``input_forms`` gives inputs of one storage in two forms. ``own_random`` judges the backend's
own random numbers. ``verified``: no kernel of the program is refuted, for any size that the guards allow.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import repeat
from threading import Barrier, BrokenBarrierError
from typing import Any

import torch

from pytest_regional._torch.config import FUNCTORCH, patched_config
from pytest_regional._torch.fx_graphs import flatten
from pytest_regional._torch.tracing import is_zero_tensor
from pytest_regional.fuzz.findings.files import from_data, reason_of, to_data
from pytest_regional.fuzz.model.arguments import LAYOUTS, TensorInput
from pytest_regional.fuzz.model.building import is_buildable
from pytest_regional.fuzz.model.claims import Memory
from pytest_regional.fuzz.model.program import Program, Region, Step
from pytest_regional.fuzz.operators.table import operator_named
from pytest_regional.fuzz.oracles.example_run import ExampleRun, ExpectedResults, NoClaim, Oracle, Run, kinds_of
from pytest_regional.fuzz.oracles.parity import (
    mismatches_of,
    raise_exception,
    raise_failure,
    raise_mismatches,
    without_fake_strides,
)
from pytest_regional.fuzz.settings import in_mode
from pytest_regional.harness.parity.compare import BadProgramError, Mismatch, compare
from pytest_regional.harness.parity.execution import random_cotangent
from pytest_regional.harness.parity.inputs import other_form
from pytest_regional.harness.parity.objects import dense_value
from pytest_regional.harness.parity.random_code import RUNS, random_mismatches, reseeded
from pytest_regional.harness.parity.state import same_bytes
from pytest_regional.harness.raised import origin_of
from pytest_regional.harness.record import GeneratedCode

#: What sizes grow by: the first other size makes Dynamo compile again, with symbols, and those serve the second.
_GROWTH = (1, 4)


def check_further_calls(example: ExampleRun) -> None:
    """Raise where a call with other inputs fails or differs from eager, or where the first ones then do."""
    if example.cold.error is not None:
        raise NoClaim("the program does not run")
    example.regional._reset(keep_code=True)  # Dynamo has other calls of it by now
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
    raise_exception(example, execution, "further_calls", "run", f"{what}: eager runs, the backend raises")
    mismatches = without_fake_strides(example, expected.inputs, expected.compared(execution).mismatches)
    raise_mismatches(example, mismatches, "further_calls", f"{what}: ")


def _with_other_strides(program: Program) -> Iterator[tuple[str, Program]]:
    chance = random.Random(program.source)
    changed = replace(program, arguments=tuple(_in_another_layout(one, chance) for one in program.arguments))
    if changed.arguments != program.arguments and is_buildable(changed):
        yield "other strides", changed


def _in_another_layout(argument: TensorInput, chance: random.Random) -> TensorInput:
    """Return an argument with other strides; one that aliases another, or whose elements overlap, as it is."""
    if argument.alias_of is not None or argument.layout == "expanded" or not argument.shape:
        return argument
    rank = len(argument.shape)
    never = {argument.layout, "expanded", *(("transposed",) if rank < 2 else ())}
    never |= set() if rank == 4 else {"channels_last"}
    return replace(argument, layout=chance.choice([layout for layout in LAYOUTS if layout not in never]))


def _with_other_sizes(program: Program) -> Iterator[tuple[str, Program]]:
    """Yield the program with one size larger, everywhere; of several sizes the first that eager takes."""
    sizes = dict.fromkeys(size for argument in program.arguments for size in argument.shape if size > 1)
    for size in sizes:
        found = []
        for growth in _GROWTH:
            arguments = tuple(argument.resized(size, size + growth) for argument in program.arguments)
            found.append((f"{size + growth} for {size}", replace(program, arguments=arguments)))
        if all(is_buildable(larger) for _, larger in found):
            yield from found
            return


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
    raise_exception(example, first, "own_random", "compile", "with the backend's own random numbers it raises")
    with example.regional.observer.paused():
        eager = [example.execute(example.program.function, inputs, draws=seed) for seed in seeds]
    runs = [first, *(example.execute(compiled, inputs, draws=seed) for seed in (*seeds[1:], seeds[0]))]
    found = random_mismatches(eager, runs[:-1], runs[-1])
    raise_mismatches(example, found, "own_random", "with the backend's own random numbers: ")


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
    raise_mismatches(example, found, "alias_probe")


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
    said = "views of one tensor" if form == "views" else "tensors of one storage that are no views"
    raise_mismatches(example, mismatches, "input_forms", f"with inputs as {said}: ")


# Repetition


def check_results_kept(example: ExampleRun) -> None:
    """Raise where the second call overwrites what the first returned, or its gradients."""
    run = example.cold
    if len(run.executions) < 2:
        raise NoClaim("there was no second call")
    raise_mismatches(example, run.overwritten, "results_kept", "after a second call: ")


def check_retained_backward(example: ExampleRun) -> None:
    """Raise where backwards with ``retain_graph`` fail, or do not add up to eager's gradients."""
    if not example.trains:
        raise NoClaim("no backward is compiled")
    try:
        expected = example.expected_of(_backpropagating(example.program.function), example.expected[0].inputs)
    except BadProgramError as error:
        raise NoClaim(f"eager refuses a second backward: {reason_of(error)}") from error
    # The very first backward is to be one that keeps its graph: it decides how the backward compiles.
    example.regional._reset(keep_code=True)
    # PyTorch documents that graphs are kept only with this setting: a donated buffer is overwritten by one backward.
    with patched_config(FUNCTORCH, {"donated_buffer": False}):
        run = example.run(example.program, calls=1, around=_backpropagating)
    raise_failure(example, run, "retained_backward", "backward")
    mismatches = expected.compared(run.executions[0]).mismatches
    inputs = example.expected[0].inputs
    wrong = without_fake_strides(example, inputs, [mismatch for mismatch in mismatches if "grad" in mismatch.where])
    said = "after a backward with retain_graph, one from the first output alone, and a last one: "
    raise_mismatches(example, wrong, "retained_backward", said, "backward")


def _backpropagating(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``fn`` with backwards behind it that keep the graph for another one; gradients add up."""

    def call(*inputs: Any) -> Any:
        output = fn(*inputs)
        roots = [leaf for leaf in flatten(output)[0] if (isinstance(leaf, torch.Tensor) and leaf.requires_grad)]
        cotangents = [random_cotangent(root, 0, index) for index, root in enumerate(roots)]
        if roots:
            torch.autograd.backward(roots, cotangents, retain_graph=True)
            torch.autograd.backward(roots[:1], cotangents[:1], retain_graph=True)
        return output

    return call


def check_determinism(example: ExampleRun) -> None:
    """Raise where a second compile plans otherwise, generates other code, or gives other bits."""
    example.regional._reset(keep_code=True)
    again = example.run(example.program, calls=1)
    raise_failure(example, again, "determinism")
    if plan_of(example.cold) != plan_of(again):
        before, after = plan_of(example.cold), plan_of(again)
        raise example.violation(
            "determinism", "compile", f"compiled twice, the plan was {before}, then {after}", origin="another plan"
        )
    if code_of(example.cold.code) != code_of(again.code):
        raise example.violation(
            "determinism", "compile", "compiled twice in fresh caches, the code differs", origin="other code"
        )
    differs = compare(example.cold.executions[0], again.executions[0], level="bitwise").mismatches
    if not differs:
        return
    # Some operators add in an order that threads decide, in eager as well.
    with example.regional.observer.paused():
        eager = example.execute(example.program.function, example.expected[0].inputs)
    if compare(example.expected[0].eager, eager, level="bitwise").ok:
        raise example.violation(
            "determinism", "run", f"compiled twice, other bits: {'; '.join(map(str, differs[:4]))}", origin="other bits"
        )


def plan_of(run: Run) -> list[tuple[str, list[Any], list[str | None]]]:
    """Return kind and partitions of each graph, and the regions in the order of their calls, as plain data."""
    return [
        (graph.kind, [(partition.regions, partition.operators) for partition in graph.partitions], graph.called)
        for graph in run.watched.graphs
    ]


#: Paths, and keys of generated files: what two compiles in different folders may name differently.
_NAMES = re.compile(r"/\S+|\bc[a-z2-7]{50,}\b|\b[0-9a-f]{32,}\b")


def code_of(code: GeneratedCode) -> list[str]:
    """Return the generated sources without comments, and without names of files."""
    return [
        "\n".join(_NAMES.sub("", line) for line in source.text.splitlines() if not line.lstrip().startswith("#"))
        for source in code
    ]


THREADS = 4

#: Threads that have not answered by then wait for each other, also on a busy machine.
_SECONDS = 1800.0

#: Times that each thread calls what it compiled, while the others do.
_CALLS = 4


def check_threads(example: ExampleRun) -> None:
    """Raise where one of several threads fails that each compile and run the program, its regions renamed."""
    if any(operator_named(step.operator).uses_rng for step in example.program.all_steps()):
        raise NoClaim("it draws random numbers, and threads share their generator")
    if not example.trains:
        raise NoClaim("no backward is compiled")
    result = example.regional.in_new_process(compile_at_once, to_data(example.program), example.mode, timeout=_SECONDS)
    failures: list[tuple[str, str]] = result.value
    if failures:
        origin, detail = failures[0]
        raise example.violation(
            "threads",
            "backward",
            f"{len(failures)} of {THREADS} threads failed that compile at once: {detail}",
            origin=origin,
        )


def compile_at_once(regional: Any, data: dict[str, Any], mode: str) -> list[tuple[str, str]]:
    """Compile variants of a program in threads, then call them at once; return origin and detail of each failure.

    Runs in a new process. Half of the threads call with other inputs than the rest, so that arguments and results that
    are mixed up show.
    """
    program = from_data(data)
    examples = [
        ExampleRun(regional, renamed(program, f" of thread {number}"), mode, blame=False) for number in range(THREADS)
    ]
    for example in examples:
        _ = example.expected
    together = Barrier(THREADS)
    with in_mode(regional, mode), ThreadPoolExecutor(THREADS) as pool:
        runs = list(pool.map(lambda example: example.run(example.program, calls=1), examples))
        failures = [_failure_of(example, run) for example, run in zip(examples, runs, strict=True)]
        if not any(failures):
            failures = list(pool.map(_called_at_once, examples, runs, range(THREADS), repeat(together)))
        return [failure for failure in failures if failure is not None]


def _called_at_once(example: ExampleRun, run: Run, number: int, together: Barrier) -> tuple[str, str] | None:
    """Call what is compiled on both inputs in turn, while the other threads do so; return the first failure."""
    for turn in range(_CALLS):
        try:
            together.wait(_SECONDS)
        except BrokenBarrierError:  # another thread has failed
            return None
        order = (0, 1) if (number + turn) % 2 else (1, 0)
        called = {which: example.execute(run.compiled, example.expected[which].inputs) for which in order}
        again = replace(run, executions=(called[0], called[1]))
        failure = _failure_of(example, again)
        if failure is not None:
            together.abort()
            return failure
    return None


def _failure_of(example: ExampleRun, run: Run) -> tuple[str, str] | None:
    error = run.error
    if error is not None:
        return origin_of(error), f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    mismatches = mismatches_of(example, run)
    return (kinds_of(mismatches), str(mismatches[0])) if mismatches else None


def renamed(program: Program, suffix: str) -> Program:
    """Return ``program`` with another name for each region, so that no thread waits for the others' results."""

    def changed(step: Step) -> Step:
        scope = (
            replace(context, name=f"{context.name}{suffix}", after=tuple(f"{first}{suffix}" for first in context.after))
            if isinstance(context, Region)
            else context
            for context in step.scope
        )
        return replace(step, scope=tuple(scope))

    blocks = tuple(replace(block, steps=tuple(map(changed, block.steps))) for block in program.blocks)
    return replace(program, steps=tuple(map(changed, program.steps)), blocks=blocks)


ORACLES = (
    Oracle(
        "further_calls",
        "The compiled program gives eager's results for other strides and sizes, and then for the first ones again.",
        check_further_calls,
        every=4,
        place=120,
        fails_in_capture=True,
        after_parity=True,
        scripted=True,
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
    Oracle(
        "results_kept",
        "A second call leaves what the first one gave, gradients included, as it is.",
        check_results_kept,
        requires=("results_kept",),
        place=110,
    ),
    Oracle(
        "retained_backward",
        "A backward that keeps its graph may be the first, and be run again, whole or from one output.",
        check_retained_backward,
        requires=("backward",),
        every=4,
        place=130,
        fails_in_capture=True,
        after_parity=True,
    ),
    Oracle(
        "determinism",
        "Compiled twice in fresh caches, a program has the same plan and code, and gives the same bits.",
        check_determinism,
        requires=("regions",),
        every=8,
        place=210,
    ),
    Oracle(
        "threads",
        "Several threads may compile forwards and backwards at once.",
        check_threads,
        requires=("regions", "backward"),
        every=256,
        place=220,
    ),
)
