"""What eager makes of single steps: for building programs, and for looking at their memory."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pytest_regional.fuzz.definitions import defined
from pytest_regional.fuzz.operators.operator import OPERAND_NAMES, Operator
from pytest_regional.fuzz.operators.table import operator_named
from pytest_regional.fuzz.program import Block, Context, Scope, Step

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
        names: dict[str, Any] = {**defined(operator.needs), **parameters}
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
