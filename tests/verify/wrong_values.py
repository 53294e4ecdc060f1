"""Planted faults after which generated code reads and writes what it may, and computes something else."""

from __future__ import annotations

from pytest_regional.verify.outcomes import VALUES
from tests.emulation.faults import Mutation, replaced, substituted
from tests.verify.planted import DYNAMIC, STATIC, PlantedFault


def _wrong(name: str, program: str, mutate: Mutation, sizes: str = STATIC, hidden: bool = False) -> PlantedFault:
    return PlantedFault("wrong value", name, program, sizes, mutate, VALUES, hidden)


_PARTIAL_SUM = "tmp3 = tl.where(r0_mask, tmp1, 0)"

_LATE = replaced("tmp2 + tmp3", "tl.where(x0 < 1024, tmp2 + tmp3, tmp2)")

NOT_FOLLOWED = _wrong("begins with one", "sums", replaced("R0_BLOCK], 0, tl.float32", "R0_BLOCK], 1, tl.float32"))
"""What a sum begins with is followed if it is nothing: this one is not proved, and not refuted."""

WRONG_VALUES: tuple[PlantedFault, ...] = (
    # Operations and constants
    _wrong("constant", "even", replaced("2.0", "2.001")),
    _wrong("constant", "even", replaced("2.0", "2.001"), DYNAMIC),
    _wrong("operation", "even", replaced("tmp2 + tmp3", "tmp2 - tmp3")),
    _wrong("operands", "layer norm", replaced("tmp1 - tmp9", "tmp9")),
    _wrong("function", "even", replaced("tl_math.sin(", "tl_math.cos(")),
    _wrong("larger for smaller", "products", substituted(r"(triton_helpers|tl)\.maximum\(", r"\1.minimum(")),
    _wrong("divisor", "layer norm", replaced("64.0, tl.float32", "63.0, tl.float32")),
    _wrong("divisor of a mean", "column means", replaced("2000.0", "125.0")),
    _wrong("quotient the wrong way round", "softmax", replaced("tmp14 / tmp12", "tmp12 / tmp14")),
    _wrong("square root lost", "layer norm", replaced("libdevice.rsqrt(tmp20)", "(1.0 / tmp20)")),
    _wrong("another value stored", "pointwise", replaced("(x0), tmp5, xmask", "(x0), tmp4, xmask")),
    _wrong(
        "elements after the 1024th",
        "even",
        replaced("tmp2 + tmp3", "tl.where(x0 < 1024, tmp2 + tmp3, tmp2)"),
        DYNAMIC,
        hidden=True,
    ),
    _wrong("constant", "nonzero", replaced("tl.full([1], 2, tl.int64)", "tl.full([1], 3, tl.int64)")),
    _wrong("one element", "pointwise", replaced("tmp2 + tmp3", "tl.where(x0 == 999, tmp2, tmp2 + tmp3)")),
    # Places
    _wrong("transposed", "square", replaced("tl.load(in_ptr0 + (x1 + 64*y0)", "tl.load(in_ptr0 + (y0 + 64*x1)")),
    _wrong("stored transposed", "square", replaced("out_ptr0 + (x1 + 64*y0)", "out_ptr0 + (y0 + 64*x1)")),
    _wrong("a row further", "roll", replaced("(63 + x1) % 64", "(62 + x1) % 64")),
    _wrong("a row for another", "outer", replaced("x1 = xindex // 64", "x1 = (xindex // 64) ^ 1")),
    _wrong("broadcast along the other axis", "outer", replaced("in_ptr0 + (x1)", "in_ptr0 + (x0 // 4)")),
    _wrong("channels for columns", "channels last", replaced("y0 + 8*x2 + 128*y1", "x2 + 16*y0 + 128*y1")),
    _wrong("the next index", "gather", replaced("x0 + 32*tmp4", "x0 + 32*((tmp4 + 1) % 20)")),
    _wrong("indices not taken", "gather", replaced("x0 + 32*tmp4", "x0 + 32*x1")),
    _wrong("boundary of parts", "cat", replaced("tl.full([1], 24, tl.int64)", "tl.full([1], 25, tl.int64)")),
    _wrong("part for part", "cat", replaced("tl.where(tmp6, tmp11, tmp19)", "tl.where(tmp6, tmp19, tmp11)")),
    _wrong("padding", "pad", replaced("tmp5 & xmask, other=0.0", "tmp5 & xmask, other=1.0")),
    _wrong("padded on the other side", "pad", substituted(r"\(-1\) \+ x0", "(-3) + x0")),
    # Reductions
    _wrong("combined otherwise", "two axes", replaced("tl.sum(", "triton_helpers.max2(")),
    _wrong("combined otherwise", "sums", replaced("tl.sum(", "triton_helpers.max2(")),
    _wrong("first element left out", "sums", replaced("r0_index < r0_numel", "(r0_index < r0_numel) & (r0_index > 0)")),
    _wrong("last element left out", "sums", replaced("r0_index < r0_numel", "r0_index < r0_numel - 1")),
    _wrong("what is masked off is added", "products", replaced("xmask, tmp1, 0)", "xmask, tmp1, 1)")),
    _wrong("one row twice", "two axes", replaced("r0_2 = r0_index // 64", "r0_2 = r0_index // 64 // 2")),
    _wrong("another row", "two axes", replaced("r0_1 + 64*x0 + 2048*r0_2", "r0_1 + 64*((x0 + 1) % 32) + 2048*r0_2")),
    _wrong("mean not subtracted", "layer norm", replaced("tmp16 = tmp0 - tmp9", "tmp16 = tmp0")),
    _wrong("largest of another", "softmax", replaced("tmp13 = tmp0 - tmp6", "tmp13 = tmp0 + tmp6")),
    _wrong(
        "last part left out",
        "total",
        replaced("r0_mask = r0_index < r0_numel\n    r", "r0_mask = r0_index < 24\n    r"),
    ),
    _wrong("parts multiplied", "total", replaced(_PARTIAL_SUM, "tmp3 = tl.where(r0_mask, tmp1 * 2, 0)")),
    _wrong("parts overlap", "total", replaced("r0_1 + 8192*x0", "r0_1 + 8191*x0")),
    _wrong("smallest for largest", "largest", replaced("max_with_index(", "min_with_index(")),
    _wrong("a place further", "largest", substituted(r"tl.broadcast_to\(rindex, ", "tl.broadcast_to(rindex + 1, ")),
    _wrong(
        "places from the end", "largest", substituted(r"tl.broadcast_to\(rindex, ", "tl.broadcast_to(23 - rindex, ")
    ),
    # Buffers
    _wrong("results in another order", "even", replaced("return (buf0, buf1, )", "return (buf1, buf0, )")),
    _wrong("operands in another order", "square", replaced("run(arg0_1, arg1_1,", "run(arg1_1, arg0_1,")),
    _wrong("stored into each other's place", "pointwise", replaced("buf0, buf1, 1000", "buf1, buf0, 1000")),
)
