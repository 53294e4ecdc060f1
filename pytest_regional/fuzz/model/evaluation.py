"""What eager makes of single steps: for building programs, and for looking at their memory."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_regional._torch.tracing import storage_key
from pytest_regional.fuzz.model.program import Block, Context, Program, Scope, Step
from pytest_regional.fuzz.model.source import defined, make_inputs
from pytest_regional.fuzz.operators.operator import OPERAND_NAMES, Operator, argument_value
from pytest_regional.fuzz.operators.table import operator_named

if TYPE_CHECKING:
    import torch

#: What eager raises on small valid tensors that do not fit an operator.
REFUSALS = (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError)


def evaluate(
    operator: Operator, step: Step, operands: Sequence[torch.Tensor], blocks: Sequence[Callable[..., Any]]
) -> list[torch.Tensor]:
    """Return the results of one step in eager."""
    parameters = dict(step.parameters)
    if operator.evaluate is not None:
        made = operator.evaluate(*operands, *blocks, **parameters)
    else:
        names: dict[str, Any] = {**defined(operator.needs)}
        names.update((name, argument_value(name, value)) for name, value in parameters.items())
        names.update(zip(OPERAND_NAMES, operands, strict=False))
        names.update(zip(("block", "other"), blocks, strict=False))
        made = eval(operator.code, names)
    if not operator.results:
        return []
    return list(made) if operator.results > 1 else [made]


def makes_at_most(
    limit: int,
    operator: Operator,
    step: Step,
    operands: Sequence[torch.Tensor],
    blocks: Sequence[Callable[..., Any]],
) -> bool:
    """Tell, before memory is taken for them, whether the results of one step have ``limit`` elements at most."""
    import torch

    numbers = [number for _, value in step.parameters for number in (value if isinstance(value, tuple) else (value,))]
    sizes = [max(abs(number), 1) for number in numbers if isinstance(number, int)]
    # Nothing is larger than all operands broadcast against each other and repeated, a square of a size, and a bit more.
    if 16 * math.prod(max(tensor.numel(), 1) for tensor in operands) * math.prod(sizes) ** 2 <= limit:
        return True
    if operator.unbacked or operator.calls:
        # What depends on data cannot be asked of shapes alone; blocks work element by element.
        return bool(8 * sum(tensor.numel() for tensor in operands) <= limit)
    shapes = [
        torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta") for tensor in operands
    ]
    try:
        made = evaluate(operator, step, shapes, blocks)
    except REFUSALS:
        return False
    return bool(sum(tensor.numel() for tensor in made) <= limit)


def function_of_block(block: Block) -> Callable[..., Any]:
    """Return ``block`` as a function of tensors, for building: it computes what the printed block does."""

    def call(*operands: torch.Tensor) -> torch.Tensor:
        values = dict(zip(block.parameters, operands, strict=False))
        for step in block.steps:
            operator = operator_named(step.operator)
            with eager(step.scope):
                made = evaluate(operator, step, [values[number] for number in step.operands], ())
            values.update(zip(step.results, made, strict=True))
        return values[block.result]

    return call


@contextlib.contextmanager
def eager(scope: Scope) -> Iterator[None]:
    """Enter what a scope means to eager execution; region annotations mean nothing to it."""
    import torch

    kinds = {context.kind for context in scope if isinstance(context, Context)}
    with contextlib.ExitStack() as stack:
        if "autocast" in kinds:
            stack.enter_context(torch.autocast("cpu", torch.bfloat16))
        if "no_grad" in kinds:
            stack.enter_context(torch.no_grad())
        yield


__all__ = ["REFUSALS", "eager", "evaluate", "function_of_block", "makes_at_most"]


def memory_of(tensor: torch.Tensor) -> int:
    """Return what identifies the memory that ``tensor`` lies in."""
    key = storage_key(tensor)
    assert key is not None, "programs have no tensors without a storage"
    return key


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
                return  # what eager refuses is told where the program is checked
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


def uses_rng(step: Step) -> bool:
    """Tell whether the step's own operator draws random numbers."""
    return operator_named(step.operator).uses_rng


def touched(step: Step) -> tuple[int, ...]:
    """Return the values that ``step`` makes or writes to."""
    return (*step.results, *(step.operands[position] for position in operator_named(step.operator).writes))


def live_values(steps: Sequence[Step], ends: Iterable[int]) -> set[int]:
    """Return the values that ``ends`` depend on, as far as operands tell."""
    live = set(ends)
    for step in reversed(steps):
        if live.intersection(touched(step)):
            live.update(step.operands)
    return live


def live_steps(block: Block) -> set[Step]:
    """Return the steps that a block's result depends on."""
    live = live_values(block.steps, (block.result,))
    return {step for step in block.steps if live.intersection(step.results)}
