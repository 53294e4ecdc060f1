"""``assert_fused``, ``assert_not_fused``, ``assert_count`` and ``assert_no_copy``."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import CodeAssertionError, at_least, at_most
from pytest_regional.harness.codegen import OpError


def test_fused(code):
    code("chain").assert_fused("aten.sin", "aten.mul")
    code("train").assert_fused("aten.silu", "aten.mul", "aten.add", graph="forward")
    with pytest.raises(
        CodeAssertionError, match=r"^aten.add, aten.mul are not fused: lines \d+, \d+ compute only some"
    ):
        code("chain").assert_fused("aten.add", "aten.mul")


def test_not_fused(code):
    code("chain").assert_not_fused("aten.add", "aten.mul")
    code("chain").assert_not_fused("aten.add", "aten.mm", "aten.sin")
    with pytest.raises(CodeAssertionError) as failure:
        code("chain").assert_not_fused("aten.add", "aten.sin", "aten.mul")
    assert str(failure.value).startswith("aten.sin and aten.mul are fused into one kernel (line ")
    assert next(line for line in str(failure.value).split("\n") if line.startswith(">")).split()[2] == "kernel"


def test_parts_of_a_decomposed_operator_are_not_the_program_s(code):
    # silu is made of neg, exp, add and div; the add of the program is another.
    code("train").assert_fused("aten.silu>aten.exp", "aten.silu>aten.div", graph="forward")
    with pytest.raises(OpError, match=r"It is part of aten.silu there: write 'aten.silu>aten.exp'"):
        code("train").assert_not_fused("aten.exp", "aten.mm", graph="forward")


def test_count(code):
    code("products").assert_count("aten.mm", 4)
    code("products").assert_count(torch.ops.aten.mm, at_most(4))
    code("train").assert_count("aten.mm", at_least(3))
    code("train").assert_count("aten.mm", 2, graph="forward")
    with pytest.raises(CodeAssertionError, match=r"^aten.mm: expected 3 launches, found 4\ninference graph") as failure:
        code("products").assert_count("aten.mm", 3)
    assert str(failure.value).count("\n> ") == 4
    with pytest.raises(CodeAssertionError, match=r"expected at most 3 launches, found 4"):
        code("products").assert_count("aten.mm", at_most(3))


def test_count_of_none_needs_an_operator_that_exists(code):
    code("products").assert_count("aten.addmm", 0)
    with pytest.raises(OpError, match=r"no launch of aten.addm"):
        code("products").assert_count("aten.addm", 0)
    with pytest.raises(OpError, match=r"no launch of aten.addmm"):
        code("products").assert_count("aten.addmm", 1)
    with pytest.raises(CodeAssertionError, match=r"expected 0 launches, found 4"):
        code("products").assert_count("aten.mm", 0)


def test_no_copy(code):
    code("chain").assert_no_copy()
    code("train").assert_no_copy(graph="forward")
    with pytest.raises(CodeAssertionError, match=r"^1 event only copy: line \d+") as failure:
        code("copies").assert_no_copy()
    assert "[aten.clone.default, aten.t(permute)]" in str(failure.value)
    # The gradient of sum is expanded and copied, because a product wants it dense; a sum is fused into that kernel.
    with pytest.raises(CodeAssertionError, match=r"1 event only copy"):
        code("train").assert_no_copy(graph="backward")
