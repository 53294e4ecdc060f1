"""Programs of public issues, in the model: the builder takes them, so they can be drawn.

Each stands for what a user reported, in our own words and with as few steps as it needs. Whether the defect still
stands is not asked here.
"""

from __future__ import annotations

import pytest

from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.building import check_buildable, value_ranges
from pytest_regional.fuzz.model.program import Program, Region, Step

A = (Region("a"),)


def given(shape, content="whole", dtype="float32", layout="dense", **more):
    return TensorInput(shape, dtype, layout, content, **more)


ROWS = (("dim", 0), ("keepdim", False))

#: By number of the issue: inputs, steps, and which values are exact, so that no difference is allowed in them.
ISSUES = {
    "198033 in-place foreach reads a flipped copy of what it writes": (
        (given((4,)), given((4,))),
        (
            Step("flip", (0,), (("dim", 0),), (2,)),
            Step("flip", (1,), (("dim", 0),), (3,)),
            Step("aten__foreach_add__List", (0, 1, 2, 3), (("alpha", 1),)),
        ),
        (0, 1),
    ),
    "197888 indices of a pool of a transposed image": (
        (given((1, 2, 3, 5, 5), "distinct", layout="transposed", requires_grad=True),),
        (Step("aten_adaptive_max_pool3d", (0,), (("output_size", (2, 2, 2)),), (1, 2)),),
        (1, 2),
    ),
    "197739 argmin of a transposed tensor": (
        (given((3, 5), "places", layout="transposed"),),
        (Step("aten_argmin", (0,), (("dim", 0), ("keepdim", False)), (1,)),),
        (1,),
    ),
    "197586 angle of a complex number with a negative zero": (
        (given((4,), "edges"), given((4,), "edges")),
        (Step("complex_angle_of_edges", (0, 1), (), (2,)),),
        (),
    ),
    "197434 max pool with indices of a transposed image": (
        (given((2, 3, 5, 7), "places", layout="transposed"),),
        (Step("aten_adaptive_max_pool2d", (0,), (("output_size", (2, 2)),), (1, 2)),),
        (1, 2),
    ),
    "197091 dtype of ldexp": (
        (given((4,), dtype="bfloat16"), given((4,), dtype="int32")),
        (Step("aten_ldexp_Tensor", (0, 1), (), (2,)),),
        (),
    ),
    "197089 deviations of numbers of 1e30": (
        (given((8, 8), "large"),),
        (Step("aten_std_correction", (0,), (("dim", (0,)), ("correction", 1), ("keepdim", False)), (1,)),),
        (),
    ),
    "196577 alpha and beta of products": (
        (given((4, 4)), given((4, 4))),
        (Step("aten_addmm", (0, 1, 1), (("beta", 2), ("alpha", -1)), (2,), A),),
        (2,),
    ),
    "beta of 0 beside NaN": (
        (given((4, 4)), given((4, 4), "nonfinite")),
        (Step("aten_addmm", (0, 0, 1), (("beta", 0), ("alpha", 1)), (2,), A),),
        (2,),
    ),
    "195066 product of int8 with a stride of 0 in a dimension of one": (
        (given((129, 1), dtype="int8", layout="zero_stride"), given((1, 129), dtype="int8")),
        (Step("aten__int_mm", (0, 1), (), (2,)),),
        (2,),
    ),
    "193661 argmax behind a reduction of what is not contiguous": (
        (given((2, 3, 5, 7), layout="transposed"),),
        (
            Step("sum", (0,), (("dim", 3), ("keepdim", False)), (1,), A),
            Step("at_argmax", (1,), (("dim", 2),), (2,), A),
        ),
        (1, 2),
    ),
    "191571 what a scatter into one element left is gathered": (
        (given((1,)), given((4,), "index", "int64", below=2)),
        (
            Step("aten_mul_Scalar", (1,), (("number", 0),), (2,)),
            Step("aten_index_select", (0, 2), (("dim", 0),), (3,)),
            Step("aten_index_add", (0, 2, 3), (("dim", 0), ("alpha", 1)), (4,)),
            Step("aten_gather", (4, 2), (("dim", 0), ("sparse_grad", False)), (5,)),
        ),
        (4, 5),
    ),
    "191308 batched product of int8": (
        (given((2, 4, 4), dtype="int8"),),
        (Step("aten_bmm", (0, 0), (), (1,)),),
        (1,),
    ),
    "189799 negative zero": (
        (given((4,)),),
        (Step("neg", (0,), (), (1,)), Step("add_number", (1,), (("value", 0.0),), (2,))),
        (1, 2),
    ),
    "185517 gradients of margin_ranking_loss": (
        tuple(given((8,), dtype="bfloat16", requires_grad=place < 2) for place in range(3)),
        (Step("aten_margin_ranking_loss", (0, 1, 2), (("margin", 0.0), ("reduction", 0)), (3,)),),
        (),
    ),
    "185464 classes of -1 in multilabel_margin_loss": (
        (given((2, 3)), given((2, 3), "index", "int64", below=3)),
        (
            Step("aten_sub_Scalar", (1,), (("number", 1), ("alpha", 1)), (2,)),
            Step("aten_multilabel_margin_loss", (0, 2), (("reduction", 1),), (3,)),
        ),
        (2,),
    ),
    "185337 rounding to float16 and back": (
        (given((66,), "signed"),),
        (Step("rounded_twice", (0,), (), (1,)),),
        (1,),
    ),
    "184893 extremes of truth values": (
        (given((3, 5), "mask", "bool"),),
        (Step("values_max", (0,), (("dim", 1),), (1,)),),
        (1,),
    ),
    "quotients just below an integer": (
        (given((66,), "edges"),),
        (Step("aten_remainder_Scalar", (0,), (("number", 0.3),), (1,)),),
        (1,),
    ),
    "absolute value of the least integer": (
        (given((66,), "edges", "int8"),),
        (Step("aten_abs", (0,), (), (1,)), Step("to_int64", (1,), (), (2,))),
        (1, 2),
    ),
}


@pytest.mark.parametrize("issue", ISSUES)
def test_a_public_issue_can_be_drawn(issue):
    arguments, steps, exact = ISSUES[issue]
    made = tuple(number for step in steps for number in step.results) or tuple(range(len(arguments)))
    program = Program(arguments, steps, made, training=any(argument.requires_grad for argument in arguments))
    check_buildable(program)
    program(*program.inputs(seed=3))
    ranges = value_ranges(program)
    assert {number for number in exact if not ranges[number].exact} == set()
