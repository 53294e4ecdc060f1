"""Edges inside a region, across regions and to eager code hold in what runs."""

from __future__ import annotations

import pytest
import torch

from pytest_regional._region import region
from pytest_regional._torch import torch_version
from pytest_regional.harness.codegen import CodeAssertionError
from tests.reference.ordering.compiled import harness, run_with


def independent(x, w):
    with region("a"):
        h = x + 1
        return w @ w, h * 2


def test_without_edges_inductor_chooses_and_fuses():
    with harness() as made:
        record = run_with(made, {}, independent, made.randn(8, 8), made.randn(8, 8))
        record.code.assert_fused("aten.add", "aten.mul")
        with pytest.raises(CodeAssertionError):
            record.code.assert_order("aten.add", "aten.mm", "aten.mul")


def test_a_chain_holds_in_the_generated_code():
    with harness() as made:
        record = run_with(made, {"mm": ["add"], "mul": ["mm"]}, independent, made.randn(8, 8), made.randn(8, 8))
        assert made.ordered.added == 2
        record.code.assert_order("aten.add", "aten.mm", "aten.mul")
        record.code.assert_not_fused("aten.add", "aten.mul")
        assert made.counters["region_compiles"] == 1


def fused_in_the_graph(x, w, b):
    with region("a"):
        return x.cos(), (x @ w) + b


def test_an_op_that_inductor_fuses_in_the_graph_waits_with_what_it_became():
    with harness() as made:
        x, w, b = made.randn(8, 8), made.randn(8, 8), made.randn(8)
        record = run_with(made, {"mm": ["cos"]}, fused_in_the_graph, x, w, b)
        record.code.assert_order("aten.cos", "aten.addmm")
        made.restart()
        record = run_with(made, {"cos": ["mm"]}, fused_in_the_graph, x, w, b)
        record.code.assert_order("aten.addmm", "aten.cos")


def merged(x, w, b):
    with region("a"):
        product = x @ w
        return product + b, x.cos()


def test_ops_that_another_has_to_run_between_are_not_merged():
    with harness() as made:
        x, w, b = made.randn(8, 8), made.randn(8, 8), made.randn(8)
        run_with(made, {}, merged, x, w, b).code.assert_count("aten.addmm", 1)
        made.restart()
        record = run_with(made, {"cos": ["mm"], "add": ["cos"]}, merged, x, w, b)
        record.code.assert_order("aten.mm", "aten.cos", "aten.add")


def decomposed(x, w):
    with region("a"):
        return torch.nn.functional.silu(x), torch.nn.functional.softmax(x, -1), w @ w


@pytest.mark.parametrize("op", ["silu", "_softmax"])
def test_an_op_that_is_decomposed_waits_and_is_waited_for_as_a_whole(op):
    with harness() as made:
        x, w = made.randn(8, 8), made.randn(8, 8)
        run_with(made, {op: ["mm"]}, decomposed, x, w).code.assert_order("aten.mm", f"aten.{op}")
        made.restart()
        run_with(made, {"mm": [op]}, decomposed, x, w).code.assert_order(f"aten.{op}", "aten.mm")


def filled(x, w):
    with region("a"):
        return x > w, w.masked_fill(x < w, 0.0)


def test_the_constant_of_a_decomposed_op_is_not_what_waits():
    with harness() as made:
        x, w = made.randn(8, 8), made.randn(8, 8)
        run_with(made, {}, filled, x, w).code.assert_fused("aten.gt", "aten.masked_fill")
        made.restart()
        record = run_with(made, {"masked_fill": ["gt"]}, filled, x, w)
        record.code.assert_not_fused("aten.gt", "aten.masked_fill")


def scalars(x, w):
    with region("a"):
        return x.sum(0) - (x[0] + x[-1]) * w


def test_a_scalar_that_waits_is_not_computed_with_what_it_waits_for():
    with harness(device="cuda-emulated") as made:  # where the sum of three elements needs no loop
        x, w = made.randn(3), made.randn(())
        run_with(made, {}, scalars, x, w).code.assert_fused("aten.sum", "aten.mul")
        made.restart()
        run_with(made, {"mul": ["sum_1"]}, scalars, x, w).code.assert_not_fused("aten.sum", "aten.mul")


def repeated(x, w):
    with region("a"):
        h, p = x + 1, x @ w
    with region("b"):
        return h, p, x + 1, x @ w


def test_equal_partitions_share_a_compile_only_if_their_order_is_equal():
    with harness() as made:
        x, w = made.randn(8, 8), made.randn(8, 8)
        run_with(made, {"mm": ["add"], "mm_1": ["add_1"]}, repeated, x, w)
        assert made.counters["region_compiles"] == 1
        made.restart()
        record = run_with(made, {"mm": ["add"], "add_1": ["mm_1"]}, repeated, x, w)
        assert record.counters["region_compiles"] == 1  # the other is the one of before, from PyTorch's cache
        record.code.assert_order("aten.add", "aten.mm", region="a")
        record.code.assert_order("aten.mm", "aten.add", region="b")


def test_caches_tell_orders_apart():
    with harness() as made:
        x, w = made.randn(8, 8), made.randn(8, 8)
        run_with(made, {"mm": ["add"]}, independent, x, w).code.assert_order("aten.add", "aten.mm")
        made.restart()
        run_with(made, {"add": ["mm"]}, independent, x, w).code.assert_order("aten.mm", "aten.add")
        made.restart()
        with made.expect(region_compiles=0, region_cache_hits=1):
            run_with(made, {"mm": ["add"]}, independent, x, w).code.assert_order("aten.add", "aten.mm")


def test_an_op_with_several_results_and_one_without(void_op):
    def program(x, w):
        with region("a"):
            values, indices = torch.topk(x, 3)
            void_op(w)
            return values, indices, w @ w, x.cos()

    with harness() as made:
        x, w = made.randn(8, 8), made.randn(8, 8)
        record = run_with(made, {"mm": ["topk"], "cos": ["mm"]}, program, x, w)
        record.code.assert_order("aten.topk", "aten.mm", "aten.cos")
        made.restart()
        record = run_with(made, {"topk": ["mm"]}, program, x, w)
        record.code.assert_order("aten.mm", "aten.topk")
        if torch_version() >= (2, 13):  # lowering of 2.11 refuses an ordered op without result
            made.restart()
            record = run_with(made, {"tell": ["mm"], "cos": ["tell"]}, program, x, w)
            record.code.assert_order("aten.mm", "ordering_tests.tell", "aten.cos")


def test_an_edge_in_a_branch_inside_a_region():
    def program(x, w):
        def positive(x, w):
            return x + 1, w @ w

        def negative(x, w):
            return x - 1, w * 2

        with region("a"):
            return torch.cond(x.sum() > 0, positive, negative, (x, w))

    with harness() as made:
        x, w = made.randn(8, 8).abs(), made.randn(8, 8)
        record = run_with(made, {"add": ["mm"]}, program, x, w)
        assert made.ordered.added == 1
        record.code.assert_order("aten.mm", "aten.add")
        made.restart()
        record = run_with(made, {"mm": ["add"]}, program, x, w)
        record.code.assert_order("aten.add", "aten.mm")


def test_a_pass_of_the_users_own_still_runs_in_front():
    seen = []

    def note(graph):
        seen.append(sum("control_deps" in str(node.target) for node in graph.nodes))

    with harness(inductor_configs={"post_grad_custom_post_pass": note}) as made:
        record = run_with(made, {"mm": ["add"]}, independent, made.randn(8, 8), made.randn(8, 8))
        record.code.assert_order("aten.add", "aten.mm")
    assert seen == [0]


def test_order_extends_no_lifetime():
    def program(x, w):
        with region("a"):
            first = x @ w
            second = first @ w
            third = second @ w
            return third @ w, x.cos()

    with harness() as made:
        record = run_with(made, {"cos": ["mm"], "mm_3": ["cos"]}, program, made.randn(8, 8), made.randn(8, 8))
        record.code.assert_order("aten.mm#1", "aten.cos", "aten.mm#4")
        record.code.assert_freed_before("aten.mm#1", "aten.mm#4")
