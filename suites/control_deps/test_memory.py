"""An edge keeps no buffer alive, and what nobody needs is not computed because somebody waits for it."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import CodeAssertionError, region, torch_matches
from pytest_regional.backends.ordering import add_control_deps, control_deps

from .edges import AddEdges, ops_by_name, pytorchs_orderer, run_ordered
from .programs import without_kernels

pytestmark = pytest.mark.regional_compile(requires=("inductor_code",), dynamic=False)

MATRIX = 8 * 8 * 4


@region("r")
def four_products(x, w):
    return (((x @ w) @ w) @ w) @ w, torch.addmm(x, w, w)


@region("r")
def first_is_kept(x, w):
    first = x @ w
    return ((first @ w) @ w) @ w, first


@pytest.mark.parametrize(
    ("orderer", "edges", "matrices"),
    [
        # The other result is there while the chain still has two products: one that is read, one that is written.
        (add_control_deps, (("mm#1", "addmm"), ("addmm", "mm#4")), 3),
        (add_control_deps, (("mm#1", "mm#4"),), 2),
        (pytorchs_orderer, (("mm#1", "mm#4"),), 2),
    ],
    ids=["add_control_deps", "add_control_deps-implied", "preserve_node_ordering-implied"],
)
def test_no_lifetime_is_extended(regional, orderer, edges, matrices):
    adding = AddEdges(*edges, orderer=orderer)
    record = run_ordered(regional, four_products, regional.randn(8, 8), regional.randn(8, 8), edges=adding)
    record.code.assert_freed_before("aten.mm#1", "aten.mm#4")
    record.code.assert_peak_live_bytes(at_most=matrices * MATRIX)


def test_the_peak_without_edges(regional):
    record = run_ordered(regional, four_products, regional.randn(8, 8), regional.randn(8, 8), edges=())
    record.code.assert_peak_live_bytes(at_most=2 * MATRIX)
    with pytest.raises(CodeAssertionError, match="alive at once"):
        record.code.assert_peak_live_bytes(at_most=2 * MATRIX - 1)


def test_a_lifetime_that_is_extended_is_seen(regional):
    record = run_ordered(regional, first_is_kept, regional.randn(8, 8), regional.randn(8, 8), edges=())
    with pytest.raises(CodeAssertionError, match="never freed"):
        record.code.assert_freed_before("aten.mm#1", "aten.mm#4")


class OrderADeadOp:
    """Puts a product that nobody uses after the rows."""

    def __init__(self):
        self.kept = []

    def __call__(self, graph):
        ops = ops_by_name(graph)
        turned, mm = ops["reversed_rows"], ops["mm"]
        with graph.inserting_before(mm):
            dead = graph.call_function(torch.ops.aten.mm.default, mm.args)
        dead.meta = dict(mm.meta)
        add_control_deps(graph, {dead: [turned]})
        graph.eliminate_dead_code()
        self.kept.append(len(graph.find_nodes(op="call_function", target=control_deps())))


def test_a_dead_op_that_waits_is_not_computed(regional):
    """From torch 2.13 on its node stays in the graph (the operator counts as impure); no code comes of it."""
    dead = OrderADeadOp()
    compiled = regional.compile(without_kernels, inductor_configs={"post_grad_custom_post_pass": dead})
    record = regional.run(compiled, regional.randn(8, 8), regional.randn(8, 8), as_is=True)
    record.code.assert_count("aten.mm", 1)
    assert dead.kept == [1 if torch_matches(">=2.13") else 0]
