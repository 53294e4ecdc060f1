"""Templates of operators that call blocks, next to others that read the same; a program has to define a block."""

from __future__ import annotations

from pytest_regional.fuzz.draw.template import Template
from pytest_regional.fuzz.model.program import Step

CALL_TEMPLATES = (
    Template(
        "a condition, and a nested region behind it",
        (
            Step("literal_index", (0,), (), (-1,)),
            (Step("cond", (-1, 0), (), (-2,), (), (0, 0)), Step("nested", (0,), (), (-2,), (), (0,))),
            (Step("nested", (-2,), (), (-3,), (), (0,)), Step("cond", (-1, -2), (), (-3,), (), (0, 0))),
        ),
        weight=3,
    ),
    Template(
        "a branch that reads the weight of a convolution",
        (
            (
                Step("conv2d", (0, 0), (("stride", 2), ("padding", 0)), (-1,)),
                Step("conv2d", (0, 0), (("stride", 1), ("padding", 1)), (-1,)),
            ),
            Step("literal_index", (0,), (), (-2,)),
            Step("cond", (-2, 0), (), (-3,), (), (0, 0)),
        ),
        rank=4,
        most=4,
        weight=9,
    ),
)
