"""Templates of writes that a compiler has to keep in order: through views, to parts, by custom operators."""

from __future__ import annotations

from pytest_regional.fuzz.draw.template import Template
from pytest_regional.fuzz.model.program import Step


def _clone(number: int) -> Step:
    return Step("clone", (0,), (), (number,))


WRITE_TEMPLATES = (
    Template(
        "a write through what looks like a copy",
        (
            _clone(-1),
            (
                Step("slice_of_all", (-1,), (), (-2,)),
                Step("to_same", (-1,), (), (-2,)),
                Step("contiguous", (-1,), (), (-2,)),
                Step("dropout_in_eval", (-1,), (), (-2,)),
                Step("dropout_of_none", (-1,), (), (-2,)),
                Step("real_part", (-1,), (), (-2,)),
                Step("reshape", (-1,), (("shape", (-1,)),), (-2,)),
                Step("expand_as_itself", (-1,), (), (-2,)),
            ),
            (Step("mul_number_", (-2,), (("value", 0.5),), ()), Step("add_", (-2, 0), (), ())),
            Step("sin", (-1,), (), (-3,)),
        ),
    ),
    Template(
        "a write to a part, and the whole is read",
        (
            _clone(-1),
            (
                Step("narrow", (-1,), (("dim", 0), ("start", 0), ("length", 1)), (-2,)),
                Step("select", (-1,), (("dim", 0), ("index", 0)), (-2,)),
                Step("diagonal", (-1,), (), (-2,)),
                Step("every_second", (-1,), (), (-2,)),
                Step("matrix_transpose", (-1,), (), (-2,)),
            ),
            (Step("mul_number_", (-2,), (("value", 0.5),), ()), Step("sin_", (-2,), (), ())),
            (
                Step("copy_between_slices", (-1,), (("length", 1),), ()),
                Step("shift_rows", (-1,), (), ()),
                Step("foreach_add_flipped", (-1,), (), ()),
            ),
            Step("add", (-1, 0), (), (-3,)),
        ),
        rank=2,
    ),
    Template(
        "a copy that a custom operator writes to, next to its original",
        (
            Step("detach", (0,), (), (-1,)),
            Step("clone", (-1,), (), (-2,)),
            (
                Step("custom_mutating", (-2, -1), (), ()),
                Step("custom_exchange", (-2, -1), (), ()),
                Step("custom_mutating_with_result", (-2,), (), (-3,)),
            ),
            Step("mul", (-2, -1), (), (-4,)),
        ),
    ),
    Template(
        "two copies that exchange what they hold",
        (
            Step("detach", (0,), (), (-1,)),
            Step("sin", (-1,), (), (-2,)),
            Step("cos", (-1,), (), (-3,)),
            (Step("foreach_exchange", (-2, -3), (), ()), Step("custom_exchange", (-2, -3), (), ())),
            Step("sub", (-2, -3), (), (-4,)),
        ),
    ),
    Template(
        "rows are put into what was expanded",
        (
            (Step("sum", (0,), (("dim", 0), ("keepdim", False)), (-1,)), Step("sin", (0,), (), (-1,))),
            Step("expand_in_front", (-1,), (), (-2,)),
            Step("literal_index", (0,), (), (-3,)),
            (Step("index", (-2, -3), (), (-4,)), Step("index_select", (-2, -3), (("dim", 0),), (-4,))),
            Step("neg", (-4,), (), (-5,)),
            (
                Step("index_put_accumulate", (-2, -3, -5), (), (-6,)),
                Step("index_put", (-2, -3, -5), (), (-6,)),
                Step("index_add", (-2, -3, -5), (), (-6,)),
                Step("index_copy", (-2, -3, -5), (), (-6,)),
            ),
        ),
        rank=1,
        most=4,
        weight=3,
    ),
    Template(
        "pieces of an input are returned, and written through it while another input shares its memory",
        (
            (
                Step("unbind", (0,), (("dim", 0),), (-1, -2)),
                Step("chunk", (0,), (("dim", 0),), (-1, -2)),
                Step("tensor_split", (0,), (("dim", 0),), (-1, -2, -3)),
                Step("unbind", (0,), (("dim", 1),), (-1, -2)),
                Step("alias", (0,), (), (-1,)),
            ),
            (
                Step("mul_number_", (0,), (("value", 0.5),), ()),
                Step("add_number_", (0,), (("value", 1.0),), ()),
                Step("sub_", (0, 0), (), ()),
            ),
        ),
        rank=1,
        shared=True,
        weight=12,
    ),
)
