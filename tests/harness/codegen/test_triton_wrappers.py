"""Triton wrappers of several torch versions, whose operators come from comments."""

from __future__ import annotations

import pytest
import torch

from pytest_regional.harness.codegen import CodeAssertionError, NoSuchOpError, Op, UnknownOriginError

from .wrapper_files import captured

VERSIONS = ("2.11", "2.13", "2.15")
SQUARE = 8 * 8 * 4
every_version = pytest.mark.parametrize("version", VERSIONS)


@every_version
def test_forward(version):
    code = captured("train", "forward", version)
    code.assert_order("aten.mm#1", "aten.mm#2", "aten.silu")
    code.assert_fused("aten.add", "aten.silu", "aten.mul", "aten.sum")
    code.assert_count("aten.mm", 2)
    code.assert_no_copy()
    code.assert_peak_live_bytes(at_most=3 * SQUARE)
    kernel = code.events.of_kind("kernel")[0]
    assert (kernel.reads, kernel.writes) == (("buf1", "buf0", "primals_1"), ("buf3",))
    with pytest.raises(CodeAssertionError, match=r"aten.silu \(line \d+\) does not come before aten.mm \(lines"):
        code.assert_order("aten.silu", "aten.mm")
    with pytest.raises(CodeAssertionError, match=r"768 bytes"):
        code.assert_peak_live_bytes(at_most=3 * SQUARE - 1)


@every_version
def test_backward(version):
    code = captured("train", "backward", version)
    code.assert_order("aten.sum", "aten.mm", "aten.addmm")
    # The kernel copies an input of the product for it, and its comment names the product.
    code.assert_count("aten.mm", 1)
    code.assert_not_fused("aten.mm", "aten.sum")
    code.assert_freed_before("buf3", "aten.addmm#2")
    with pytest.raises(CodeAssertionError, match=r"aten.sum and aten.silu_backward are fused into one kernel"):
        code.assert_order("aten.sum", "aten.silu_backward")
    with pytest.raises(CodeAssertionError, match=r"buf3 .* is not freed before aten.addmm#1"):
        code.assert_freed_before("buf3", "aten.addmm#1")


@every_version
def test_branches_whose_comments_name_what_is_around_them_are_of_unknown_origin(version):
    code = captured("branch", "inference", version)
    events = code.events.of_kind("kernel")
    assert [event.ops for event in events] == [(Op("aten.sum"), Op("aten.gt")), None, None, (Op("aten.mul"),)]
    assert [len(event.path) for event in events] == [0, 2, 2, 0]
    with pytest.raises(UnknownOriginError):
        code.assert_order("aten.sum", "aten.mul")


def test_a_template_computes_its_operator_and_what_follows():
    code = captured("template", "inference", "2.13")
    code.assert_fused("aten.mm", "aten.relu", "aten.add")
    kernel = code.events.of_kind("kernel")[0]
    assert (kernel.reads, kernel.writes) == (("arg0_1", "arg1_1"), ("buf1",))
    with pytest.raises(CodeAssertionError, match=r"aten.mm and aten.relu are fused"):
        code.assert_not_fused("aten.mm", "aten.relu")


def test_a_kernel_over_several_tensors():
    kernel = captured("foreach", "inference", "2.13").events.of_kind("kernel")[0]
    assert kernel.ops == (Op("aten._foreach_add"),)
    assert (kernel.reads, kernel.writes) == (("arg0_1", "arg1_1"), ("buf0", "buf1"))


def test_a_kernel_that_the_user_wrote():
    code = captured("user", "inference", "2.13")
    code.assert_order("triton.double_and_exp", "aten.add")
    kernel = code.events.of_kind("kernel")[0]
    assert "buf0" in kernel.writes
    assert set(kernel.reads) >= {"arg0_1", "arg1_1"}
    with pytest.raises(CodeAssertionError):
        code.assert_order("aten.add", "double_and_exp")


def test_overloads_are_not_known_from_comments():
    with pytest.raises(
        NoSuchOpError, match=r"Only the name 'aten.silu' is known, not its overload: leave the overload"
    ):
        captured("train", "forward", "2.13").assert_order("aten.mm", torch.ops.aten.silu.default)
