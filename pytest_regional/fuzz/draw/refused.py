"""Programs that eager refuses, for the oracle ``refused``: drawn programs with a damaged argument.

No campaign draws them, and none keeps them as findings: what is kept has to be a program that eager runs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from pytest_regional.fuzz.draw.encoding import Options
from pytest_regional.fuzz.draw.graphs import random_programs
from pytest_regional.fuzz.model.arguments import FLOATS, TensorInput
from pytest_regional.fuzz.model.evaluation import REFUSALS
from pytest_regional.fuzz.model.program import Program

#: How often one program is damaged before the next is drawn.
_TRIES = 4

#: Dtypes that many operators refuse.
_OTHER_DTYPES = ("bool", "uint8", "int64", "complex64", "float64")


def refused_programs(seed: int, max_steps: int = 6, options: Options | None = None) -> Iterator[Program]:
    """Yield, without end, programs whose inputs can be made and that eager refuses; the same for the same seed.

    Args:
        seed: of the draws.
        max_steps: how many statements a program has at most.
        options: which programs are drawn; see :class:`~pytest_regional.fuzz.draw.encoding.Options`.
    """
    chance = random.Random(f"refused {seed}")
    for program in random_programs(seed, max_steps=max_steps, options=options or Options()):
        for _ in range(_TRIES if program.arguments else 0):
            at = chance.randrange(len(program.arguments))
            damaged = list(program.arguments)
            damaged[at] = _damaged(damaged[at], chance)
            candidate = replace(program, arguments=tuple(damaged))
            if _is_refused(candidate):
                yield candidate
                break


def _damaged(argument: TensorInput, chance: random.Random) -> TensorInput:
    """Return ``argument`` with another size, rank or dtype, or with indices that are too large."""
    shape = argument.shape
    changed = [replace(argument, dtype=dtype) for dtype in _OTHER_DTYPES if dtype != argument.dtype]
    changed += [
        replace(argument, shape=(*shape[:at], size + 1, *shape[at + 1 :]), dynamic=()) for at, size in enumerate(shape)
    ]
    changed += [replace(argument, shape=(*shape, 2), dynamic=())]
    changed += [replace(argument, below=argument.below + 50)] * 4 if argument.content == "index" else []
    one = chance.choice(changed)
    return one if one.dtype in FLOATS else replace(one, requires_grad=False)


def _is_refused(program: Program) -> bool:
    try:
        inputs = program.inputs("cpu", 1)
    except REFUSALS:
        return False
    try:
        program(*inputs)
    except REFUSALS:
        return True
    return False


__all__ = ["refused_programs"]
