"""Templates of what compilers look for by its shape, in several spellings."""

from __future__ import annotations

from pytest_regional.fuzz.draw.template import Template
from pytest_regional.fuzz.model.program import Context, Step


def _scaled(operand: int, result: int) -> tuple[Step | None, ...]:
    return (
        Step("mul_number", (operand,), (("value", 0.5),), (result,)),
        Step("div_number", (operand,), (("value", 0.5),), (result,)),
        None,
    )


PATTERN_TEMPLATES = (
    Template(
        "attention by hand",
        (
            (
                Step("matrix_transpose", (0,), (), (-1,)),
                Step("transpose", (0,), (("first", -2), ("second", -1)), (-1,)),
            ),
            Step("matmul_batched", (0, -1), (), (-2,)),
            _scaled(-2, -3),
            (None, Step("float", (-3,), (), (-4,))),
            (None, Step("full_like", (-4,), (("value", -2.0),), (-5,))),
            (None, Step("add", (-4, -5), (), (-6,))),
            (
                Step("softmax", (-6,), (("dim", -1),), (-7,)),
                Step("softmax", (-6,), (("dim", -2),), (-7,)),
                Step("softmax", (-6,), (("dim", 1),), (-7,)),
            ),
            (None, Step("dropout_of_none", (-7,), (), (-8,)), Step("dropout_in_eval", (-7,), (), (-8,))),
            (None, Step("type_as", (-8, 0), (), (-9,))),
            Step("matmul_batched", (-9, 0), (), (-10,)),
        ),
        rank=3,
        most=4,
    ),
    Template(
        "convolution, batch norm and activation",
        (
            Step("conv2d", (0, 0), (("stride", 1), ("padding", 1)), (-1,)),
            Step("batch_norm_in_eval", (-1,), (), (-2,)),
            (Step("silu", (-2,), (), (-3,)), Step("relu", (-2,), (), (-3,)), None),
        ),
        rank=4,
    ),
    Template(
        "modulated layer norms in a row",
        (
            Step("mean", (0,), (("dim", -2), ("keepdim", True)), (-1,)),
            Step("layer_norm", (0,), (), (-2,)),
            Step("add_number", (-1,), (("value", 1.0),), (-3,)),
            Step("mul", (-2, -3), (), (-4,)),
            Step("add", (-4, -1), (), (-5,)),
            Step("layer_norm", (-5,), (), (-6,)),
            Step("mul", (-6, -3), (), (-7,)),
            Step("add", (-7, -1), (), (-8,)),
        ),
        rank=2,
    ),
    Template(
        "products, transposes and sums of them",
        (
            Step("mm_transposed", (0, 0), (), (-1,)),
            (Step("matrix_transpose", (-1,), (), (-2,)), None),
            Step("add", (-1, -2), (), (-3,)),
            (
                Step("addmm", (-3, 0, 0), (), (-4,)),
                Step("mm", (-3, 0), (), (-4,)),
                Step("add_alpha", (-3, -1), (("alpha", 2),), (-4,)),
            ),
            (None, Step("matrix_transpose", (-4,), (), (-5,))),
        ),
        rank=2,
        most=2,
    ),
    Template(
        "positions of extremes behind a sum of a permuted value",
        (
            (
                Step("matrix_transpose", (0,), (), (-1,)),
                Step("channels_last", (0,), (), (-1,)),
                Step("permute", (0,), (("dims", (2, 0, 1)),), (-1,)),
            ),
            Step("detach", (-1,), (), (-2,)),
            (Step("sum", (-2,), (("dim", -1), ("keepdim", False)), (-3,)), Step("square", (-2,), (), (-3,)), None),
            (
                Step("value_at_argmax", (-3,), (("dim", 0),), (-4,)),
                Step("value_at_argmin", (-3,), (("dim", -1),), (-4,)),
                Step("value_at_max_index", (-3,), (("dim", 0),), (-4,)),
                Step("values_by_argsort", (-3,), (("dim", -1),), (-4,)),
            ),
        ),
        rank=2,
    ),
    Template(
        "sums over rows next to sums over columns",
        (
            Step("mul", (0, 0), (), (-1,)),
            (Step("rms_by_hand", (-1,), (), (-2,)), Step("layer_norm", (-1,), (), (-2,)), None),
            Step("sum", (-2,), (("dim", 0), ("keepdim", False)), (-3,)),
            Step("sum", (-2,), (("dim", -1), ("keepdim", False)), (-4,)),
        ),
        rank=2,
    ),
    Template(
        "pieces that are put together again",
        (
            Step("chunk", (0,), (("dim", 0),), (-1, -2)),
            (None, Step("neg", (-1,), (), (-3,))),
            (Step("cat", (-1, -2), (("dim", 0),), (-4,)), Step("stack", (-1, -2), (("dim", 0),), (-4,))),
            Step("flatten", (-4,), (), (-5,)),
        ),
        rank=1,
    ),
    Template(
        "a gated unit",
        (
            Step("chunk", (0,), (("dim", -1),), (-1, -2)),
            Step("swiglu", (-1, -2), (), (-3,)),
            (None, Step("rms_by_hand", (-3,), (), (-4,))),
        ),
        rank=1,
    ),
    Template(
        "a rotary embedding",
        (
            Step("chunk", (0,), (("dim", -1),), (-1, -2)),
            Step("neg", (-2,), (), (-3,)),
            Step("cat", (-3, -1), (("dim", -1),), (-4,)),
            Step("cos", (0,), (), (-5,)),
            Step("sin", (0,), (), (-6,)),
            Step("mul", (0, -5), (), (-7,)),
            Step("mul", (-4, -6), (), (-8,)),
            Step("add", (-7, -8), (), (-9,)),
        ),
        rank=1,
    ),
    Template(
        "rows that are looked up, normalized and added back",
        (
            Step("literal_index", (0,), (), (-1,)),
            Step("index", (0, -1), (), (-2,)),
            Step("rms_by_hand", (-2,), (), (-3,)),
            Step("zeros_like", (0,), (), (-4,)),
            (Step("index_add", (-4, -1, -3), (), (-5,)), Step("index_put_accumulate", (-4, -1, -3), (), (-5,))),
            Step("index", (-5, -1), (), (-6,)),
        ),
        rank=1,
    ),
    Template(
        "a margin that is cut off again",
        (
            (Step("pad", (0,), (), (-1,)), Step("constant_pad", (0,), (), (-1,))),
            (Step("head", (-1,), (), (-2,)), Step("every_second", (-1,), (), (-2,))),
            Step("sin", (-2,), (), (-3,)),
        ),
        rank=2,
    ),
    Template(
        "a lower precision for a moment",
        (
            Step("sin", (0,), (), (-1,)),
            (Step("to_float16", (-1,), (), (-2,)), Step("to_bfloat16", (-1,), (), (-2,))),
            (Step("to_float32", (-2,), (), (-3,)), Step("type_as", (-2, 0), (), (-3,))),
            Step("add_mixed", (-3, -1), (), (-4,)),
        ),
    ),
    Template(
        "a flip of repeated elements",
        (
            Step("repeat_interleave", (0,), (("dim", 0),), (-1,)),
            Step("flip", (-1,), (("dim", 0),), (-2,)),
            Step("add", (-1, -2), (), (-3,)),
        ),
        rank=1,
        most=3,
    ),
    Template(
        "a sum over what was expanded",
        (
            (Step("matrix_transpose", (0,), (), (-1,)), None),
            Step("expand_in_front", (-1,), (), (-2,)),
            (Step("sum", (-2,), (("dim", 0), ("keepdim", False)), (-3,)), Step("sum_by_hand", (-2,), (), (-3,))),
        ),
        rank=2,
    ),
    Template(
        "autocast around a product, and its sum outside",
        (
            Step("mm_transposed", (0, 0), (), (-1,), (Context("autocast"),)),
            (Step("softmax", (-1,), (("dim", -1),), (-2,)), Step("sin", (-1,), (), (-2,))),
            Step("sum_all", (-2,), (), (-3,)),
        ),
        rank=2,
        most=2,
    ),
    Template(
        "a norm of an instance, of its vectors, and an activation",
        (
            Step("instance_norm", (0,), (), (-1,)),
            (None, Step("unit_vectors", (-1,), (("dim", 1),), (-2,))),
            (Step("silu", (-2,), (), (-3,)), Step("hardswish", (-2,), (), (-3,))),
        ),
        rank=3,
    ),
    Template(
        "rows in an order that is drawn",
        (
            (Step("sin", (0,), (), (-1,)), None),
            Step("randperm", (0,), (("size", 2),), (-2,)),
            (
                Step("index", (-1, -2), (), (-3,)),
                Step("index_select", (-1, -2), (("dim", 0),), (-3,)),
                Step("take", (-1, -2), (), (-3,)),
            ),
        ),
        rank=1,
        weight=2,
    ),
    Template(
        "labels of each row, some of them padding",
        (
            Step("sign", (0,), (), (-1,)),
            Step("to_int64", (-1,), (), (-2,)),
            Step("aten_multilabel_margin_loss", (0, -2), (("reduction", 1),), (-3,)),
        ),
        rank=2,
        most=2,
        weight=4,
    ),
    Template(
        "powers of two of another dtype",
        (
            Step("sign", (0,), (), (-1,)),
            (Step("to_int64", (-1,), (), (-2,)), Step("to_int32", (-1,), (), (-2,)), Step("to_int8", (-1,), (), (-2,))),
            Step("aten_ldexp_Tensor", (0, -2), (), (-3,)),
        ),
    ),
    Template(
        "the deviation of large numbers",
        (
            Step("detach", (0,), (), (-1,)),
            Step("square", (-1,), (), (-2,)),
            Step("add_number", (-2,), (("value", 1.0),), (-3,)),
            Step("mul_number", (-3,), (("value", 1e20),), (-4,)),
            Step("deviation_of_large", (-4,), (("dim", 0), ("keepdim", False)), (-5,)),
        ),
        rank=1,
        weight=5,
    ),
)
