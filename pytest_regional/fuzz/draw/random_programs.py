"""Programs from a seed, without Hypothesis: for campaigns and benchmarks."""

from __future__ import annotations

import random
from collections.abc import Iterator

from pytest_regional.fuzz.draw.encoding import (
    EncodedArgument,
    EncodedPlan,
    EncodedProgram,
    EncodedStep,
    Options,
    program_of,
)
from pytest_regional.fuzz.model.program import Program
from pytest_regional.fuzz.operators.table import families

#: How many bytes a code is drawn as. One draw of bytes costs Hypothesis a tenth of as many draws of integers.
ARGUMENT_BYTES, STEP_BYTES, PLAN_BYTES = 9, 11, 10


def random_program(source: random.Random, *, max_steps: int = 12, options: Options | None = None) -> Program:
    """Return a program drawn from ``source``; the same for the same state."""
    return program_of(random_encoding(source, max_steps=max_steps), options)


def random_programs(seed: int, *, max_steps: int = 12, options: Options | None = None) -> Iterator[Program]:
    """Yield programs without end; the same for the same seed."""
    source = random.Random(seed)
    while True:
        yield random_program(source, max_steps=max_steps, options=options)


def random_encoding(source: random.Random, *, max_steps: int = 12) -> EncodedProgram:
    """Return an encoding drawn from ``source``."""

    def steps(most: int) -> tuple[EncodedStep, ...]:
        return tuple(decode_step(source.randbytes(STEP_BYTES)) for _ in range(source.randint(1, most)))

    arguments = tuple(decode_argument(source.randbytes(ARGUMENT_BYTES)) for _ in range(source.randint(1, 5)))
    blocks = tuple(steps(3) for _ in range(source.choice((0, 1, 2))))
    off = frozenset(name for name in families() if source.random() < 0.5) if source.random() < 0.5 else frozenset()
    return EncodedProgram(arguments, steps(max_steps), blocks, decode_plan(source.randbytes(PLAN_BYTES), off))


def decode_argument(drawn: bytes) -> EncodedArgument:
    """Return the code that bytes describe."""
    return EncodedArgument(*drawn)


def decode_step(drawn: bytes) -> EncodedStep:
    """Return the code that bytes describe; the operator has two of them."""
    high, low, a, b, c, d, first, second, third, scope, returned = drawn
    return EncodedStep(256 * high + low, (a, b, c, d), (first, second, third), scope, returned)


def decode_plan(drawn: bytes, off: frozenset[str]) -> EncodedPlan:
    """Return the code that bytes describe, and the families that are off."""
    shapes, dtype, a, b, c, training, dynamic, nonfinite, order, duplicate = drawn
    return EncodedPlan(shapes, dtype, (a, b, c), training, dynamic, nonfinite, order, duplicate, off)


__all__ = [
    "ARGUMENT_BYTES",
    "PLAN_BYTES",
    "STEP_BYTES",
    "decode_argument",
    "decode_plan",
    "decode_step",
    "random_encoding",
    "random_program",
    "random_programs",
]
