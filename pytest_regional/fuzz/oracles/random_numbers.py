"""The oracle ``own_random``: what the backend draws as users compile it, which is not what eager draws."""

from __future__ import annotations

from dataclasses import replace

from pytest_regional.fuzz.operators.table import operator_named
from pytest_regional.fuzz.oracles.example_run import ExampleRun
from pytest_regional.fuzz.oracles.oracle import NoClaim, Oracle, kinds_of
from pytest_regional.harness.parity.random_code import RUNS, random_mismatches, reseeded
from pytest_regional.harness.raised import message_of, origin_of, root_of


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
    with example.regional._observer.paused():
        eager = [example.execute(example.program.function, inputs, draws=seed) for seed in seeds]
    runs = [first, *(example.execute(compiled, inputs, draws=seed) for seed in (*seeds[1:], seeds[0]))]
    found = random_mismatches(eager, runs[:-1], runs[-1])
    if found:
        detail = f"with the backend's own random numbers: {'; '.join(map(str, found[:4]))}"
        raise example.violation("own_random", "run", detail, origin=kinds_of(found))


ORACLES = (
    Oracle(
        "own_random",
        "The backend's own random numbers have eager's dtypes, state and distribution, and one seed gives them again.",
        check_own_random,
        modes=("emulated", "native"),
        requires=("rng",),
        every=2,
    ),
)

__all__ = ["ORACLES"]
