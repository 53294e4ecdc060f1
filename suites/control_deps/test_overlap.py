"""Collectives overlapped with compute by a post-grad pass: the order shows in generated code. Extern calls alone."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx.traceback import annotate

from pytest_regional import CodeAssertionError
from pytest_regional.backends.ordering import overlap_collectives

pytestmark = pytest.mark.regional_compile(requires=("inductor_code",), inductor_configs={"reorder_for_locality": False})

C10D = torch.ops._c10d_functional
GATHER = "_c10d_functional.all_gather_into_tensor"
SCATTER = "_c10d_functional.reduce_scatter_tensor"
WAIT = "_c10d_functional.wait_tensor"


class Overlap(CustomGraphPass):
    """The pass as Inductor takes it; ``plans`` are what it did."""

    def __init__(self, **bounds):
        self.bounds, self.plans = bounds, []

    def __call__(self, graph):
        self.plans.append(overlap_collectives(graph, **self.bounds))

    def uuid(self):
        return ("overlap", tuple(self.bounds.items()))


def gathered(shard):
    return C10D.wait_tensor(C10D.all_gather_into_tensor(shard, 8, dist.group.WORLD.group_name))


def gather_beside_product(x, w, shard):
    with annotate({"compile_with_inductor": {"inductor_region": "r"}}):
        whole = gathered(shard)
        return (x @ w) @ whole


def scatter_beside_product(x, w, _):
    with annotate({"compile_with_inductor": {"inductor_region": "r"}}):
        product = x @ w
        part = C10D.wait_tensor(C10D.reduce_scatter_tensor(product, "sum", 8, dist.group.WORLD.group_name))
        return part, product @ w


@pytest.fixture(autouse=True)
def _group(fake_pg):
    fake_pg(world_size=8)


def run(regional, program, **bounds):
    overlap = Overlap(**bounds)
    inputs = regional.randn(16, 16), regional.randn(16, 16), regional.randn(2, 16)
    with torch._inductor.config.patch(post_grad_custom_post_pass=overlap):
        record = regional.run(program, *inputs)
    assert len(overlap.plans) == 1
    assert overlap.plans[0].collectives
    return record


@pytest.mark.parametrize("bounds", [{}, {"in_flight": 1}, {"memory_bound": 2.0}], ids=str)
def test_a_gather_is_hidden_by_a_product(regional, bounds):
    record = run(regional, gather_beside_product, **bounds)
    record.code.assert_order(GATHER, "aten.mm#1", WAIT, "aten.mm#2")


def test_a_scatter_is_hidden_by_what_follows(regional):
    record = run(regional, scatter_beside_product)
    record.code.assert_order("aten.mm#1", SCATTER, "aten.mm#2", WAIT)


def test_another_order_is_noticed(regional):
    """That the cases above can fail."""
    record = run(regional, gather_beside_product)
    with pytest.raises(CodeAssertionError, match="wait_tensor"):
        record.code.assert_order(GATHER, WAIT, "aten.mm#1")
