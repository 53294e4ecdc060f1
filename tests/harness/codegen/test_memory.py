"""``assert_freed_before`` and ``assert_peak_live_bytes``."""

from __future__ import annotations

import pytest

from pytest_regional import CodeAssertionError
from pytest_regional.harness.codegen import CodeLookupError, OpError, UnknownSizeError
from pytest_regional.harness.record import GeneratedCode, GeneratedSource

from .test_events import PARTITIONED

SQUARE = 8 * 8 * 4


def test_freed_before(code):
    products = code("products")
    # The third product reuses the memory of the first.
    products.assert_freed_before("aten.mm#1", "aten.mm#3")
    products.assert_freed_before("buf0", "aten.mm#3")
    code("chain").assert_freed_before("aten.add", "aten.mul")


def test_what_lives_on_is_shown(code):
    held = code("held")
    with pytest.raises(CodeAssertionError) as failure:
        held.assert_freed_before("aten.mm#1", "aten.addmm")
    first = str(failure.value).split("\n")[0]
    assert first.startswith("buf0 (line ")
    assert "is not freed before aten.addmm" in first
    assert len([line for line in str(failure.value).split("\n") if line.startswith(">")]) == 3
    with pytest.raises(CodeAssertionError, match=r"freed only at line"):
        code("products").assert_freed_before("buf0", "aten.mm#2")


def test_of_a_fused_kernel_the_operator_s_own_buffer_counts(code):
    train = code("train")
    loops = [e for e in train.sources[1].events.of_kind("kernel") if any("sum" in op.name for op in e.ops)]
    own = {name for e in loops for name, ops in e.ops_of if any(op.name == "aten.sum.default" for op in ops)}
    assert len(own) == 1
    assert len({name for e in train.sources[1].events if e.line == loops[0].line for name in e.writes}) > 1
    train.assert_freed_before("aten.sum", "aten.addmm#3", graph="backward")


def test_freeing_needs_both_in_one_source(code):
    with pytest.raises(CodeLookupError, match=r"no source of the inference graph contains both aten.mm and aten.addmm"):
        code("two_regions").assert_freed_before("aten.mm", "aten.addmm")
    with pytest.raises(OpError, match=r"no launch of buf99"):
        code("chain").assert_freed_before("buf99", "aten.mm")


def test_peak(code):
    # Two buffers take turns; the inputs are the caller's.
    code("products").assert_peak_live_bytes(at_most=2 * SQUARE)
    with pytest.raises(CodeAssertionError) as failure:
        code("products").assert_peak_live_bytes(at_most=2 * SQUARE - 1)
    first = str(failure.value).split("\n")[0]
    assert first == f"512 bytes are alive at once, more than 511: buf0 ({SQUARE}), buf1 ({SQUARE})"
    code("held").assert_peak_live_bytes(at_most=3 * SQUARE)
    with pytest.raises(CodeAssertionError, match=r"768 bytes"):
        code("held").assert_peak_live_bytes(at_most=2 * SQUARE)


def test_of_two_branches_the_larger_counts(code):
    # One arm works in place, the other holds two buffers.
    code("branch").assert_peak_live_bytes(at_most=2 * SQUARE)
    with pytest.raises(CodeAssertionError):
        code("branch").assert_peak_live_bytes(at_most=2 * SQUARE - 1)


def test_symbols_need_hints(code):
    rows, columns = code("dynamic").events.of_kind("allocate")[0].size
    code("dynamic").assert_peak_live_bytes(at_most=2 * 4 * 8 * 4, hints={rows: 4, columns: 8})
    with pytest.raises(CodeAssertionError, match=r"2048 bytes"):
        code("dynamic").assert_peak_live_bytes(at_most=2047, hints={rows: 32, columns: 8})
    with pytest.raises(UnknownSizeError, match=rf"buf0 \(needs {rows}\)"):
        code("dynamic").assert_peak_live_bytes(at_most=1, hints={columns: 8})


def test_memory_that_a_call_allocates_needs_a_hint(code):
    with pytest.raises(UnknownSizeError, match=r"hints=.*buf0 \(made by a call\)"):
        code("collectives").assert_peak_live_bytes(at_most=10**6)
    gathered = 8 * SQUARE
    code("collectives").assert_peak_live_bytes(at_most=gathered + 2 * SQUARE, hints={"buf0": gathered})
    with pytest.raises(CodeAssertionError):
        code("collectives").assert_peak_live_bytes(at_most=gathered, hints={"buf0": gathered})


def test_arguments_and_results_of_partitions_keep_their_memory():
    source = GeneratedSource("inference", (), PARTITIONED, False)
    with pytest.raises(CodeAssertionError, match=r"556 bytes are alive at once, more than 555: buf0 .256., buf1 .300."):
        GeneratedCode((source,)).assert_peak_live_bytes(at_most=555, hints={"buf1": 300})
    GeneratedCode((source,)).assert_peak_live_bytes(at_most=556, hints={"buf1": 300})
    with pytest.raises(CodeAssertionError, match=r"is not freed before aten.cumsum"):
        GeneratedCode((source,)).assert_freed_before("buf0", "aten.cumsum")


POOLED = """
def call(args):
    arg0_1, arg1_1 = args
    args.clear()
    pool0 = empty_strided_cpu((8, 8), (8, 1), torch.float32)
    buf0 = alloc_from_pool(pool0, 0, torch.float32, (8, 8), (8, 1))
    extern_kernels.mm(arg0_1, arg1_1, out=buf0)
    pool1 = empty_strided_cpu((8, 8), (8, 1), torch.float32)
    buf1 = alloc_from_pool(pool1, 0, torch.float32, (8, 8), (8, 1))
    extern_kernels.mm(buf0, arg1_1, out=buf1)
    buf2 = buf0  # alloc
    extern_kernels.mm(buf1, arg1_1, out=buf2)
    del pool1, buf1
    buf3 = empty_strided_cpu((2, 8), (16, 1), torch.float64)
    return (buf2, reinterpret_tensor(buf3, (2, 8), (16, 1), 0), )
alloc_from_pool = torch.ops.inductor._alloc_from_pool
"""


def test_pools_and_strides():
    code = GeneratedCode((GeneratedSource("inference", (), POOLED, False),))
    assert code.events.of_kind("reuse")[0].writes == ("buf2",)
    # A row of stride 16 and one of 8 elements of eight bytes each: less than the two pools.
    assert_peak(code, 2 * SQUARE, r"pool0 \(256\), pool1 \(256\)")
    assert_peak(code, SQUARE + 1000, r"pool0 \(256\), buf3 \(1000\)", hints={"buf3": 1000})
    unpooled = "\n".join(line for line in POOLED.split("\n") if "pool" not in line)
    row_and_rest = (16 + 8) * 8
    code = GeneratedCode((GeneratedSource("inference", (), unpooled, False),))
    assert_peak(code, row_and_rest, f"buf3 .{row_and_rest}.")


def assert_peak(code, size, buffers, **hints):
    code.assert_peak_live_bytes(at_most=size, **hints)
    with pytest.raises(CodeAssertionError, match=f"{size} bytes are alive at once, more than {size - 1}: {buffers}"):
        code.assert_peak_live_bytes(at_most=size - 1, **hints)
