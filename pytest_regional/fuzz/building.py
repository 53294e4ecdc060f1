"""Build programs step by step, each tried in eager on small CPU tensors before it is taken.

Eager itself says what shape, dtype, strides and aliasing a result has and what it refuses; the operator table adds what
must hold for *all* inputs (:mod:`~pytest_regional.fuzz.facts`). A step that does not fit is refused, never an error:
generators skip it, reducers take that as "keep it".
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_regional.fuzz.arguments import TensorInput
from pytest_regional.fuzz.definitions import defined
from pytest_regional.fuzz.facts import Facts
from pytest_regional.fuzz.operators.operator import OPERAND_NAMES, Operator, Picks, Value
from pytest_regional.fuzz.operators.table import operator_named
from pytest_regional.fuzz.program import Block, Context, Program, ProgramError, Scope, Step
from pytest_regional.fuzz.source import inputs_of

if TYPE_CHECKING:
    import torch


class Refused(Exception):
    """A step does not fit here, which is no error; the message says why."""


class Builder:
    """A program under construction.

    Args:
        arguments: its inputs.
        blocks: functions that it may call.
    """

    def __init__(self, arguments: Sequence[TensorInput], blocks: Sequence[Block] = ()) -> None:
        self.arguments, self.blocks = tuple(arguments), tuple(blocks)
        tensors = inputs_of(Program(self.arguments, (), ()), "cpu", 0)
        self.values = {
            index: Value(index, tensor, argument.facts)
            for index, (tensor, argument) in enumerate(zip(tensors, self.arguments, strict=True))
        }
        self.steps: list[Step] = []
        self._next = len(self.arguments)

    # Choosing

    def suitable(self, operator: Operator, before: Sequence[Value]) -> list[Value]:
        """Return the values that suit as the next operand behind ``before``, the newest first."""
        wanted = operator.operands[len(before)]
        return [value for value in reversed(self.values.values()) if wanted(value, *before)]

    def choose(
        self, operator: Operator, references: Sequence[int], numbers: Sequence[int], scope: Scope = ()
    ) -> Step | None:
        """Add a step of ``operator``; None, and nothing added, where none fits.

        Args:
            operator: what to add.
            references: for each operand, how many suitable values to go back from the newest; taken modulo.
            numbers: what its parameters are picked with; what stands behind them picks blocks.
            scope: the contexts around it.
        """
        operands: list[Value] = []
        for position in range(len(operator.operands)):
            found = self.suitable(operator, operands)
            if not found:
                return None
            operands.append(found[references[position] % len(found)])
        parameters = operator.choose(operands, Picks(numbers))
        if parameters is None or (operator.calls and not self.blocks):
            return None
        called = tuple((numbers[-1] + position) % len(self.blocks) for position in range(operator.calls))
        chosen = Step(
            operator.name, tuple(value.number for value in operands), tuple(parameters.items()), (), scope, called
        )
        try:
            return self.add(chosen)
        except Refused:
            return None

    # Adding

    def add(self, step: Step) -> Step:
        """Add ``step`` and return it with numbers for its results where it has none.

        Raises:
            Refused: it does not fit; nothing is added.
        """
        operator = operator_named(step.operator)
        operands = [self._value(number) for number in step.operands]
        before = [value.tensor for value in operands]
        for position, wanted in enumerate(operator.operands):
            if not wanted(operands[position], *operands[:position]):
                raise Refused(f"operand {position} of {operator.name} does not suit")
        facts = self._facts_of(operator, step, operands)
        tensors = self._evaluated(operator, step, before)
        results = step.results or tuple(range(self._next, self._next + operator.results))
        for number, tensor, held in zip(results, tensors, facts, strict=False):
            self.values[number] = Value(number, tensor, held, operator.unbacked)
        for position, held in zip(operator.writes, facts[operator.results :], strict=True):
            self._written(operands[position], held)
        self._next = max(self._next - 1, *results) + 1 if results else self._next
        added = replace(step, results=results)
        self.steps.append(added)
        return added

    def _value(self, number: int) -> Value:
        if number not in self.values:
            raise Refused(f"value {number} is not there")
        return self.values[number]

    def _facts_of(self, operator: Operator, step: Step, operands: Sequence[Value]) -> list[Facts]:
        if operator.calls:
            made = self._block_facts(operator, step, operands)
        else:
            made = operator.facts(*operands, **dict(step.parameters))
        facts = [made] if isinstance(made, Facts) else list(made or ())
        if len(facts) != operator.results + len(operator.writes) or not all(held.reasonable for held in facts):
            raise Refused(f"{operator.name} would leave the range in which values are kept")
        return facts

    def _block_facts(self, operator: Operator, step: Step, operands: Sequence[Value]) -> Any:
        results = [self._facts_through(self._block(index), operands) for index in step.blocks]
        return operator.facts(*operands, *results, **dict(step.parameters))

    def _block(self, index: int) -> Block:
        if index >= len(self.blocks):
            raise Refused(f"block {index} is not there")
        return self.blocks[index]

    def _facts_through(self, block: Block, operands: Sequence[Value]) -> Facts:
        held = {
            number: operands[min(position, len(operands) - 1)].facts for position, number in enumerate(block.parameters)
        }
        like = operands[0]
        for step in block.steps:
            operator = operator_named(step.operator)
            values = [replace(like, facts=held[number]) for number in step.operands]
            # All operands of a block have the first one's shape and dtype, so one value can stand for them.
            for position, wanted in enumerate(operator.operands):
                if not wanted(values[position], *values[:position]):
                    raise Refused(f"operand {position} of {operator.name} in a block does not suit")
            made = operator.facts(*values, **dict(step.parameters))
            if not isinstance(made, Facts) or not made.reasonable:
                raise Refused(f"{operator.name} in a block would leave the range in which values are kept")
            held[step.results[0]] = made
        return held[block.result]

    def _evaluated(self, operator: Operator, step: Step, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        with eager(step.scope):
            try:
                made = evaluate(operator, step, operands, self._functions(step))
            except Exception as error:
                # Whatever eager raises on small valid tensors means one thing here: this step does not fit.
                raise Refused(f"eager refuses {operator.name}: {error}") from error
        return made

    def _functions(self, step: Step) -> list[Callable[..., Any]]:
        return [function_of_block(self.blocks[index]) for index in step.blocks]

    def _written(self, target: Value, facts: Facts) -> None:
        """Note that ``target``'s memory was written to: all who share it now hold, perhaps in part, the new values."""
        memory = target.tensor.untyped_storage()._cdata
        for number, value in self.values.items():
            if value.tensor.untyped_storage()._cdata == memory:
                self.values[number] = replace(value, facts=value.facts.join(facts))

    # Finishing

    def program(self, outputs: Sequence[int], *, training: bool = True, dynamic: bool | None = None) -> Program:
        """Return the program that returns ``outputs``."""
        return Program(
            self.arguments, tuple(self.steps), tuple(outputs), self.blocks, training=training, dynamic=dynamic
        )


def evaluate(
    operator: Operator, step: Step, operands: Sequence[torch.Tensor], blocks: Sequence[Callable[..., Any]]
) -> list[torch.Tensor]:
    """Return the results of one step in eager."""
    parameters = dict(step.parameters)
    if operator.evaluate is not None:
        made = operator.evaluate(*operands, *blocks, **parameters)
    else:
        names: dict[str, Any] = {**defined(operator.needs), **parameters}
        names.update(zip(OPERAND_NAMES, operands, strict=False))
        names.update(zip(("block", "other"), blocks, strict=False))
        made = eval(operator.code, names)
    if not operator.results:
        return []
    return list(made) if operator.results > 1 else [made]


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
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if "autocast" in kinds:
            stack.enter_context(torch.autocast("cpu", torch.bfloat16))
        if "no_grad" in kinds:
            stack.enter_context(torch.no_grad())
        yield


def check(program: Program) -> None:
    """Build ``program`` again from its parts.

    Raises:
        ProgramError: it cannot be built; names the step and says why.
    """
    builder = Builder(program.arguments, program.blocks)
    for position, step in enumerate(program.steps):
        try:
            builder.add(step)
        except Refused as why:
            raise ProgramError(f"step {position} ({step.operator}) does not fit: {why}") from why
    missing = [value for value in program.outputs if value not in builder.values]
    if missing:
        raise ProgramError(f"the program returns value {missing[0]}, which no step makes")


__all__ = ["Builder", "Refused", "check", "eager", "evaluate", "function_of_block"]
