"""Programs built by hand."""

from __future__ import annotations

from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Program, Region, Scope, Step

A, B = (Region("a"),), (Region("b"),)


def chain(*steps: tuple[str, Scope], training: bool = False) -> Program:
    """Return a program of one input, each step a unary operator of the value before: ``("sin", A)``."""
    made = tuple(
        Step(operator, (position,), results=(position + 1,), scope=scope)
        for position, (operator, scope) in enumerate(steps)
    )
    argument = TensorInput((4, 4), requires_grad=training)
    return Program((argument,), made, (len(made),), training=training)


UNORDERED = Program(
    (TensorInput((4, 4)), TensorInput((4, 4))),
    (
        Step("sin", (0,), results=(2,), scope=A),
        Step("cos", (1,), results=(3,), scope=B),
        Step("tanh", (3,), results=(4,), scope=(Region("c"),)),
    ),
    (2, 3, 4),
    training=False,
)
