"""Edges inside a region, across regions and to eager code hold in what runs."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import region
from tests.reference.ordering.compiled import code_with, harness, run_with


def independent(x, w):
    with region("a"):
        h = x + 1
        return w @ w, h * 2


def fused_in_the_graph(x, w, b):
    with region("a"):
        return x.cos(), (x @ w) + b


def test_an_op_that_inductor_fuses_in_the_graph_waits_with_what_it_became():
    with harness() as made:
        x, w, b = made.randn(8, 8), made.randn(8, 8), made.randn(8)
        code = code_with(made, {"mm": ["cos"]}, fused_in_the_graph, x, w, b)
        code.assert_order("aten.cos", "aten.addmm")
        made.restart()
        code = code_with(made, {"cos": ["mm"]}, fused_in_the_graph, x, w, b)
        code.assert_order("aten.addmm", "aten.cos")


def merged(x, w, b):
    with region("a"):
        product = x @ w
        return product + b, x.cos()


def test_ops_that_another_has_to_run_between_are_not_merged():
    with harness() as made:
        x, w, b = made.randn(8, 8), made.randn(8, 8), made.randn(8)
        code_with(made, {}, merged, x, w, b).assert_count("aten.addmm", 1)
        made.restart()
        code = code_with(made, {"cos": ["mm"], "add": ["cos"]}, merged, x, w, b)
        code.assert_order("aten.mm", "aten.cos", "aten.add")


def decomposed(x, w):
    with region("a"):
        return torch.nn.functional.silu(x), torch.nn.functional.softmax(x, -1), w @ w


@pytest.mark.parametrize("op", ["silu", "_softmax"])
def test_an_op_that_is_decomposed_waits_and_is_waited_for_as_a_whole(op):
    with harness() as made:
        x, w = made.randn(8, 8), made.randn(8, 8)
        code_with(made, {op: ["mm"]}, decomposed, x, w).assert_order("aten.mm", f"aten.{op}")
        made.restart()
        code_with(made, {"mm": [op]}, decomposed, x, w).assert_order(f"aten.{op}", "aten.mm")


def filled(x, w):
    with region("a"):
        return x > w, w.masked_fill(x < w, 0.0)


def test_the_constant_of_a_decomposed_op_is_not_what_waits():
    with harness() as made:
        x, w = made.randn(8, 8), made.randn(8, 8)
        code_with(made, {}, filled, x, w).assert_fused("aten.gt", "aten.masked_fill")
        made.restart()
        code = code_with(made, {"masked_fill": ["gt"]}, filled, x, w)
        code.assert_not_fused("aten.gt", "aten.masked_fill")


def scalars(x, w):
    with region("a"):
        return x.sum(0) - (x[0] + x[-1]) * w


def test_a_scalar_that_waits_is_not_computed_with_what_it_waits_for():
    with harness(device="cuda-emulated") as made:  # where the sum of three elements needs no loop
        x, w = made.randn(3), made.randn(())
        run_with(made, {}, scalars, x, w).code.assert_fused("aten.sum", "aten.mul")
        made.restart()
        run_with(made, {"mul": ["sum_1"]}, scalars, x, w).code.assert_not_fused("aten.sum", "aten.mul")


def test_caches_tell_orders_apart():
    with harness() as made:
        x, w = made.randn(8, 8), made.randn(8, 8)
        run_with(made, {"mm": ["add"]}, independent, x, w).code.assert_order("aten.add", "aten.mm")
        made.restart()
        run_with(made, {"add": ["mm"]}, independent, x, w).code.assert_order("aten.mm", "aten.add")
        made.restart()
        with made.expect(region_compiles=0, region_cache_hits=1):
            run_with(made, {"mm": ["add"]}, independent, x, w).code.assert_order("aten.add", "aten.mm")


def test_a_pass_of_the_users_own_still_runs_in_front():
    seen = []

    def note(graph):
        seen.append(sum("control_deps" in str(node.target) for node in graph.nodes))

    with harness(inductor_configs={"post_grad_custom_post_pass": note}) as made:
        record = run_with(made, {"mm": ["add"]}, independent, made.randn(8, 8), made.randn(8, 8))
        record.code.assert_order("aten.add", "aten.mm")
    assert seen == [0]
