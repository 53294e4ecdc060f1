"""Whose memory a program writes to, and whose its outputs lie in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_regional.fuzz.evaluation import REFUSALS, eager, evaluate, function_of_block
from pytest_regional.fuzz.operators.table import operator_named
from pytest_regional.fuzz.program import Program, Step
from pytest_regional.fuzz.source import make_inputs

if TYPE_CHECKING:
    import torch


def memory_of(tensor: torch.Tensor) -> int:
    """Return what identifies the memory that ``tensor`` lies in."""
    return int(tensor.untyped_storage()._cdata)


class Memory:
    """Whose memory a program's steps write to and its outputs lie in, also of one that no builder would take.

    Attributes:
        inputs_written: whether a step writes to the memory of an input.
        outputs_shared: whether an output shares memory with an input or with another output.
    """

    def __init__(self, program: Program) -> None:
        import torch

        self.inputs_written = self.outputs_shared = False
        unmarked = tuple(replace(argument, dynamic=()) for argument in program.arguments)
        inputs = make_inputs(unmarked, "cpu", 0)
        functions = [function_of_block(block) for block in program.blocks]
        tensors = dict(enumerate(inputs))
        with torch.no_grad():
            try:
                for step in program.steps:
                    self._step(step, tensors, functions, set(map(memory_of, inputs)))
            except REFUSALS:
                return  # what eager refuses is told where the program is judged
        self.outputs_shared = len(apart(inputs, tensors, program.outputs)) < len(program.outputs)

    def _step(
        self, step: Step, tensors: dict[int, Any], functions: Sequence[Callable[..., Any]], inputs: set[int]
    ) -> None:
        operator = operator_named(step.operator)
        operands = [tensors[number] for number in step.operands]
        self.inputs_written |= any(memory_of(operands[position]) in inputs for position in operator.writes)
        with eager(step.scope):
            made = evaluate(operator, step, operands, [functions[index] for index in step.blocks])
        tensors.update(zip(step.results, made, strict=False))


def apart(inputs: Sequence[torch.Tensor], tensors: Mapping[int, torch.Tensor], outputs: Sequence[int]) -> list[int]:
    """Return those of ``outputs`` that share no memory with an input or an earlier one of them."""
    seen, found = set(map(memory_of, inputs)), []
    for number in outputs:
        memory = memory_of(tensors[number])
        if memory not in seen:
            seen.add(memory)
            found.append(number)
    return found


__all__ = ["Memory", "apart", "memory_of"]
