"""What a fault needs of a program to act: features of the whole program, and what stands inside of its regions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from pytest_regional.fuzz.findings.folder import features_of
from pytest_regional.fuzz.model.claims import live_values
from pytest_regional.fuzz.model.program import Program, Step
from pytest_regional.fuzz.operators.table import operator_named


def words_of(program: Program) -> frozenset[str]:
    """Return the features of ``program``, and ``inside:...`` for each operator and family that regions hold.

    ``inside:independent`` stands for two steps of one region that could change places.
    """
    return features_of(program) | {*_inside(program)}


def meets(program: Program, needs: Iterable[str]) -> bool:
    """Return whether ``program`` has all words of one of ``needs``, such as ``"training + inside:sum"``."""
    words = words_of(program)
    return any(words.issuperset(need.split(" + ")) for need in needs)


def _inside(program: Program) -> Iterator[str]:
    for step in _annotated(program):
        yield f"inside:{step.operator}"
        yield f"inside:family:{operator_named(step.operator).family}"

    if any(_is_free(program, *pair) for pair in itertools.combinations(program.steps, 2)):
        yield "inside:independent"


def _is_free(program: Program, first: Step, second: Step) -> bool:
    """Return whether two steps of one region compute something, and the second reads nothing of the first."""
    if first.region is None or first.region != second.region:
        return False
    if any(operator_named(step.operator).family not in _COMPUTING for step in (first, second)):
        return False
    return not live_values(program.steps, second.operands).intersection(first.results)


_COMPUTING = ("pointwise", "reduction", "matmul", "norm", "convolution", "index", "scatter")


def _annotated(program: Program) -> Iterator[Step]:
    called = {index for step in program.steps if step.regions for index in step.blocks}
    yield from (step for step in program.steps if step.regions)
    for index, block in enumerate(program.blocks):
        yield from (step for step in block.steps if step.regions or index in called)


__all__ = ["meets", "words_of"]
