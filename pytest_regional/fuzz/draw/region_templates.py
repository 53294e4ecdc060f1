"""Templates about regions: what crosses their borders, and in which order."""

from __future__ import annotations

from pytest_regional.fuzz.draw.template import ONE, OTHER, OUTSIDE, Template
from pytest_regional.fuzz.model.program import Step

REGION_TEMPLATES = (
    Template(
        "a draw outside of a region, between two of it",
        (
            Step("rand_like", (0,), (), (-1,), ONE),
            Step("rand_like", (0,), (), (-2,), OUTSIDE),
            Step("rand_like", (0,), (), (-3,), ONE),
            Step("add", (-1, -3), (), (-4,), ONE),
        ),
    ),
    Template(
        "a draw behind another operator of its region",
        (Step("sin", (0,), (), (-1,), ONE), Step("dropout", (-1,), (), (-2,), ONE)),
    ),
    Template(
        "channels-last values are stacked in a region, and what leaves it is viewed",
        (
            Step("channels_last", (0,), (), (-1,), OUTSIDE),
            Step("stack", (-1, -1), (("dim", 0),), (-2,), ONE),
            Step("flatten", (-2,), (), (-3,), OUTSIDE),
        ),
        rank=4,
    ),
    Template(
        "transposed values enter a region and leave it, and are viewed",
        (
            Step("matrix_transpose", (0,), (), (-1,), OUTSIDE),
            Step("atan", (-1,), (), (-2,), ONE),
            Step("matrix_transpose", (-2,), (), (-3,), OUTSIDE),
            Step("flatten", (-3,), (), (-4,), OUTSIDE),
        ),
        rank=2,
    ),
    Template(
        "two regions that wait for each other",
        (
            Step("sin", (0,), (), (-1,), ONE),
            Step("cos", (0,), (), (-2,), OTHER),
            Step("mul", (-2, -1), (), (-3,), OTHER),
            Step("mul", (-1, -2), (), (-4,), ONE),
        ),
    ),
    Template(
        "the same operator inside and outside",
        (
            Step("sin", (0,), (), (-1,), ONE),
            Step("sin", (0,), (), (-2,), OUTSIDE),
            Step("mul", (-1, -2), (), (-3,), OUTSIDE),
        ),
    ),
    Template(
        "a number written into a slice in a region",
        (Step("clone", (0,), (), (-1,), ONE), Step("set_column_number", (-1,), (("index", 0),), (), ONE)),
        rank=1,
    ),
    Template(
        "a write between two parts of a region",
        (
            Step("clone", (0,), (), (-1,), ONE),
            Step("mul_number_", (-1,), (("value", 0.5),), (), OUTSIDE),
            Step("sin", (-1,), (), (-2,), ONE),
        ),
    ),
    Template(
        "a size that is an expression enters a region",
        (Step("cat_itself", (0,), (), (-1,), OUTSIDE), Step("sin", (-1,), (), (-2,), ONE)),
        rank=1,
    ),
    Template(
        "a region feeds a region, with nothing between",
        (Step("sin", (0,), (), (-1,), ONE), Step("cos", (-1,), (), (-2,), OTHER)),
    ),
)
