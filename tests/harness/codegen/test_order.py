"""``assert_order``: within a source, across sources and branches, and what it says when it fails."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import CodeAssertionError
from pytest_regional.harness.codegen import CodeLookupError


def test_order_of_launches_and_extern_calls(code):
    code("chain").assert_order("aten.add", "aten.mm", "aten.mul")
    code("chain").assert_order(torch.ops.aten.add, torch.ops.aten.mm.default, "mul")


def test_an_order_that_was_asked_for_and_one_that_was_not(code):
    code("in_order").assert_order("aten.add", "aten.mm", "aten.mul")
    code("in_order").assert_not_fused("aten.add", "aten.mul")
    with pytest.raises(CodeAssertionError, match=r"aten.mm \(line \d+\) does not come before aten.mul"):
        code("independent").assert_order("aten.add", "aten.mm", "aten.mul")
    with pytest.raises(CodeAssertionError, match=r"aten.add and aten.mul are fused into one kernel"):
        code("independent").assert_not_fused("aten.add", "aten.mul")


def test_a_wrong_order_marks_both_lines(code):
    with pytest.raises(CodeAssertionError) as failure:
        code("chain").assert_order("aten.add", "aten.mul", "aten.mm")
    first, title, *table = str(failure.value).split("\n")
    events = code("chain").events
    product = events.of_kind("extern")[0].line
    last = events.of_kind("kernel")[1].line
    assert first == f"aten.mul (line {last}) does not come before aten.mm (line {product})"
    assert title == "inference graph, source 1, regions: none"
    assert [int(line.split()[1]) for line in table if line.startswith(">")] == [product, last]
    # Everything else is there, without a mark.
    assert len(table) > 8


def test_one_kernel_is_no_order(code):
    with pytest.raises(CodeAssertionError, match=r"^aten.sin and aten.mul are fused into one kernel \(line \d+\)"):
        code("chain").assert_order("aten.sin", "aten.mul")


def test_all_launches_count_unless_one_is_named(code):
    products = code("products")
    products.assert_order("aten.mm#1", "aten.mm#2", "aten.mm#4")
    with pytest.raises(CodeAssertionError, match=r"aten.mm#3 \(line \d+\) does not come before aten.mm#2"):
        products.assert_order("aten.mm#3", "aten.mm#2")
    code("held").assert_order("aten.mm", "aten.addmm")
    with pytest.raises(CodeAssertionError, match=r"aten.addmm \(line \d+\) does not come before aten.mm \(lines"):
        code("held").assert_order("aten.addmm", "aten.mm")
    # One sum comes before all products.
    with pytest.raises(CodeAssertionError, match=r"aten.addmm#1 \(line \d+\) does not come before aten.sum"):
        code("train").assert_order("aten.mm", "aten.silu_backward", "aten.addmm#1", "aten.sum", graph="backward")


def test_graphs_are_distinguished(code):
    code("train").assert_order("aten.mm", "aten.silu", graph="forward")
    code("train").assert_order("aten.sum", "aten.mm", graph="backward")
    with pytest.raises(CodeLookupError, match=r"aten.mm#2 in forward; aten.addmm#1 in backward"):
        # The backward of a product is made of others: addmm stands in the backward alone, mm#2 in the forward.
        code("train").assert_order("aten.mm#2", "aten.addmm#1")


def test_sources_of_one_graph_follow_each_other(code):
    code("two_regions").assert_order("aten.mm", "aten.addmm")
    with pytest.raises(CodeAssertionError) as failure:
        code("two_regions").assert_order("aten.addmm", "aten.mm")
    assert "source 1, regions: first" in str(failure.value)
    assert "source 2, regions: second" in str(failure.value)


def test_arms_of_a_branch_never_run_both(code):
    branch = code("branch")
    branch.assert_order("aten.mm", "aten.add")
    branch.assert_order("aten.cos", "aten.add")
    with pytest.raises(CodeLookupError, match=r"different arms"):
        branch.assert_order("aten.sin", "aten.cos")
    # In one arm the product comes first, in the other last; the other arm's does not matter.
    with pytest.raises(CodeAssertionError, match=r"aten.mm \(line \d+\) does not come before aten.cos"):
        branch.assert_order("aten.mm", "aten.cos")
    branch.assert_order("aten.mm", "aten.sin")


def test_collectives_are_ordered(code):
    code("collectives").assert_order("all_gather_into_tensor", "wait_tensor#1")
    with pytest.raises(CodeAssertionError):
        code("collectives").assert_order("wait_tensor", "all_gather_into_tensor")


def test_misuse(code):
    with pytest.raises(TypeError, match=r"at least two operators, not 1"):
        code("chain").assert_order("aten.mm")
    with pytest.raises(ValueError, match=r"named twice; ordinals"):
        code("chain").assert_order("aten.mm", "aten.mm")
