"""What a fault needs of a program to act: features of the whole program, and what stands inside of its regions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pytest_regional.fuzz.features import features_of
from pytest_regional.fuzz.operators.table import operator_named
from pytest_regional.fuzz.program import Program, Step


def words_of(program: Program) -> frozenset[str]:
    """Return the features of ``program``, and ``inside:...`` for each operator and family that regions hold."""
    return features_of(program) | {*_inside(program)}


def meets(program: Program, needs: Iterable[str]) -> bool:
    """Return whether ``program`` has all words of one of ``needs``, such as ``"training + inside:sum"``."""
    words = words_of(program)
    return any(words.issuperset(need.split(" + ")) for need in needs)


def _inside(program: Program) -> Iterator[str]:
    for step in _annotated(program):
        yield f"inside:{step.operator}"
        yield f"inside:family:{operator_named(step.operator).family}"


def _annotated(program: Program) -> Iterator[Step]:
    called = {index for step in program.steps if step.regions for index in step.blocks}
    yield from (step for step in program.steps if step.regions)
    for index, block in enumerate(program.blocks):
        yield from (step for step in block.steps if step.regions or index in called)


__all__ = ["meets", "words_of"]
