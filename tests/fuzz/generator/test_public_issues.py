"""Programs of public issues of pytorch/pytorch, in the generator's model: what the builder accepts can be drawn.

Whether an issue stands in a torch is told by ``suites/history``; here it is about reach alone.
"""

import pytest

from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.building import check_buildable
from pytest_regional.fuzz.model.program import Block, Context, Program, Step

X = TensorInput((4, 4))
TRAINED = TensorInput((4, 4), requires_grad=True)
IMAGE = TensorInput((2, 3, 4, 4))
SINE = Block((0,), (Step("sin", (0,), (), (1,)),), 1)


def program(arguments, *steps, blocks=(), training=False, dynamic=None):
    made = [number for step in steps for number in step.results]
    return Program(arguments, steps, tuple(made) or (0,), blocks, training=training, dynamic=dynamic)


def attention(dim):
    """Return attention by hand with the softmax over a dimension."""
    return program(
        (IMAGE,),
        Step("matrix_transpose", (0,), (), (1,)),
        Step("matmul_batched", (0, 1), (), (2,)),
        Step("div_number", (2,), (("value", 0.5),), (3,)),
        Step("softmax", (3,), (("dim", dim),), (4,)),
        Step("matmul_batched", (4, 0), (), (5,)),
    )


MODULATED = program(
    (TensorInput((4, 8), requires_grad=True), TensorInput((4, 8), requires_grad=True)),
    Step("layer_norm", (0,), (), (2,)),
    Step("add_number", (1,), (("value", 1.0),), (3,)),
    Step("mul", (2, 3), (), (4,)),
    Step("add", (4, 1), (), (5,)),
    Step("layer_norm", (5,), (), (6,)),
    Step("mul", (6, 3), (), (7,)),
    training=True,
)

PROGRAMS = {
    198033: program((X,), Step("foreach_add_flipped", (0,))),
    198031: program(
        (X,), Step("clone", (0,), (), (1,)), Step("custom_mutating", (1, 0)), Step("mul", (1, 0), (), (2,))
    ),
    197739: program(
        (X,),
        Step("transpose", (0,), (("first", 0), ("second", 1)), (1,)),
        Step("value_at_argmin", (1,), (("dim", 0),), (2,)),
    ),
    196468: attention(-2),
    196165: program(
        (IMAGE, TensorInput((3, 3, 3, 3))),
        Step("conv2d", (0, 1), (("stride", 1), ("padding", 1)), (2,)),
        Step("batch_norm_in_eval", (2,), (), (3,)),
    ),
    195970: program((X,), Step("while_loop_never", (0,), (), (1,), (), (0,)), blocks=(SINE,)),
    195845: program(
        (TensorInput((3, 5)),),
        Step("mul", (0, 0), (), (1,)),
        Step("sum", (1,), (("dim", 0), ("keepdim", False)), (2,)),
        Step("sum", (1,), (("dim", 1), ("keepdim", False)), (3,)),
    ),
    195066: program((TensorInput((1, 4), layout="zero_stride"), X), Step("mm", (0, 1), (), (2,))),
    194329: program(
        (TensorInput((4, 4), dynamic=(0,)),),
        Step("mm_transposed", (0, 0), (), (1,), (Context("autocast"),)),
        Step("softmax", (1,), (("dim", -1),), (2,)),
        dynamic=True,
    ),
    193661: program(
        (IMAGE,),
        Step("permute", (0,), (("dims", (3, 0, 1, 2)),), (1,)),
        Step("sum", (1,), (("dim", -1), ("keepdim", False)), (2,)),
        Step("value_at_argmax", (2,), (("dim", 1),), (3,)),
    ),
    193061: MODULATED,
    191571: program(
        (TensorInput((1, 4)), TensorInput((1, 4), "int64", content="index", below=1)),
        Step("zeros_like", (0,), (), (2,)),
        Step("scatter_add", (2, 1, 0), (), (3,)),
        Step("gather", (3, 1), (), (4,)),
    ),
    189401: program(
        (TensorInput((2, 3)),),
        Step("matrix_transpose", (0,), (), (1,)),
        Step("expand_in_front", (1,), (), (2,)),
        Step("sum_by_hand", (2,), (), (3,)),
    ),
    188084: program(
        (TensorInput((2, 3), requires_grad=True), TensorInput((2,), "int64", content="index", below=2)),
        Step("expand_in_front", (0,), (), (2,)),
        Step("index", (2, 1), (), (3,)),
        Step("index_put_accumulate", (2, 1, 3), (), (4,)),
        training=True,
    ),
    187284: program((X,), Step("forward_mode", (0,), (), (1,), (), (0,)), blocks=(SINE,)),
    187027: program(
        (TensorInput((4, 2), dynamic=(0,)),),
        Step("repeat_interleave", (0,), (("dim", 0),), (1,)),
        Step("flip", (1,), (("dim", 0),), (2,)),
        dynamic=True,
    ),
    185337: program((X,), Step("to_float16", (0,), (), (1,)), Step("to_float32", (1,), (), (2,))),
    184113: program((TRAINED, TRAINED), Step("function_matmul_in_place", (0, 1), (), (2,)), training=True),
    183601: program(
        (IMAGE,),
        Step("instance_norm", (0,), (), (1,)),
        Step("unit_vectors", (1,), (("dim", 1),), (2,)),
        Step("hardswish", (2,), (), (3,)),
    ),
}


@pytest.mark.parametrize("number", PROGRAMS)
def test_the_builder_accepts_it(number):
    check_buildable(PROGRAMS[number])


@pytest.mark.parametrize("number", PROGRAMS)
def test_eager_runs_it(number):
    PROGRAMS[number](*PROGRAMS[number].inputs(seed=1))
