"""Order edges, overlap and regions as passes: what they do is tested where it is done."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import annotate

from pytest_regional._torch.operators import control_deps
from pytest_regional.reference import RegionalInductor, RegionCompileError, RegionFallbackWarning, regional_inductor
from pytest_regional.reference.passes import AddControlDeps, OverlapCollectives
from pytest_regional.reference.pipeline import PassFailedError, PassPipeline
from pytest_regional.testing import fake_process_group, regional

aten = torch.ops.aten


def trace(function, *inputs):
    with torch.fx.traceback.preserve_node_meta():
        return make_fx(function, tracing_mode="fake")(*(inputs or (torch.randn(4, 4),)))


def sums(x):
    return x.sin(), x @ x


def product_after_sine(graph):
    (sin,) = graph.find_nodes(op="call_function", target=aten.sin.default)
    found = graph.find_nodes(op="call_function", target=aten.mm.default)
    return {found[0]: [sin]} if found else {}


def test_edges_are_added_and_reported():
    gm = trace(sums)
    passes = PassPipeline([AddControlDeps(product_after_sine)])
    passes.run(gm, [])
    assert len(gm.graph.find_nodes(op="call_function", target=control_deps())) == 1
    assert passes.report[0].summary == "1 edge added, 0 held already"
    assert passes.report[0].added == {"control_deps": 1}
    passes.run(gm, [])
    assert passes.report[0].summary == "0 edges added, 0 held already"
    x = torch.randn(4, 4)
    assert torch.equal(gm(x)[1], x @ x)


def test_an_edge_that_cannot_be_names_the_pass():
    def impossible(graph):
        sin, mm = (node for node in graph.nodes if node.op == "call_function")
        return {sin: [mm], mm: [sin]}

    with pytest.raises(PassFailedError, match="'add_control_deps', on the forward graph, raised OrderingCycleError"):
        PassPipeline([AddControlDeps(impossible)]).run(trace(sums), [])


def test_edges_with_run_pass():
    with regional("aot_eager", expects_regions=False) as r:
        result = r.run_pass(AddControlDeps(product_after_sine, identity="v1"), sums, r.randn(4, 4), stage="graph")
        result.assert_order("aten.sin", "aten.mm", pinned=True)
        result.assert_same_numerics(level="bitwise")
        result.assert_idempotent()
        result.assert_uuid_changes(AddControlDeps(product_after_sine, identity="v2"))


def two_layers(x, first, second):
    c10d = torch.ops._c10d_functional
    for shard in (first, second):
        x = x @ c10d.wait_tensor(c10d.all_gather_into_tensor(shard, 8, "0"))
    return x


def test_overlap():
    with fake_process_group(world_size=8):
        gm = trace(two_layers, torch.randn(16, 16), torch.randn(2, 16), torch.randn(2, 16))
        passes = PassPipeline([OverlapCollectives(memory_bound=2.0)])
        passes.run(gm, [])
        (row,) = passes.report
        plan = next(iter(passes)).plans["forward"]
        assert row.summary == f"2 collectives, {len(plan.edges)} edges added"
        assert row.added == {"control_deps": 2}
        assert [node.name for node in plan.collectives[1].hidden_by] == ["mm"]
        before = [str(node) for node in gm.graph.nodes]
        passes.run(gm, [])
        assert [str(node) for node in gm.graph.nodes] == before
        assert not passes.report[0].changed


def test_an_invalid_bound_is_reported_with_the_name_of_the_pass():
    with pytest.raises(
        PassFailedError, match="'overlap_collectives', on the forward graph, raised RegionalValueError: in"
    ):
        PassPipeline([OverlapCollectives(in_flight=0)]).run(trace(sums), [])


def test_overlap_uuids():
    def uuid(**options):
        return PassPipeline([OverlapCollectives(**options)]).uuid()

    settings = [uuid(), uuid(in_flight=1), uuid(memory_bound=1), uuid(memory_bound=1.0), uuid(cost=abs, identity="v1")]
    assert len({*settings, None}) == len(settings) + 1
    assert uuid(cost=abs) is None
    assert AddControlDeps(product_after_sine).uuid() is None


# Regions.


def one_region(x):
    with annotate({"compile_with_inductor": {"inductor_region": "products"}}):
        return (x @ x) @ x


def test_regional_inductor_is_the_last_pass():
    passes = PassPipeline([RegionalInductor(), lambda gm: None])
    assert passes.names == ("<lambda>", "regional_inductor")
    assert passes.terminal
    with regional("reference", expects_regions=False) as r:
        x = r.randn(4, 4)
        with r.expect(region_compiles=1):
            compiled = passes.run(trace(one_region), [x])
        torch.testing.assert_close(compiled([x]), one_region(x))
    assert [row.status for row in passes.report] == ["ran", "compiled"]


def test_options_of_regional_inductor(monkeypatch):
    def two(x):
        with annotate({"compile_with_inductor": {"inductor_region": "a"}}):
            y = (x @ x) @ x
        y = y.sin()
        with annotate({"compile_with_inductor": {"inductor_region": "b"}}):
            return (y @ y) @ y

    for share, compiles in ((True, 1), (False, 2)):
        with regional("reference", expects_regions=False) as r:
            with r.expect(region_compiles=compiles):
                PassPipeline([RegionalInductor(share_identical=share)]).run(trace(two), [r.randn(4, 4)])

    def failing(request):
        raise ValueError("no compiler here")

    monkeypatch.setitem(regional_inductor.__kwdefaults__, "compiler", failing)
    with pytest.raises(PassFailedError, match="raised RegionCompileError") as caught:
        PassPipeline([RegionalInductor()]).run(trace(one_region), [])
    assert isinstance(caught.value.__cause__, RegionCompileError)
    with pytest.warns(RegionFallbackWarning):
        PassPipeline([RegionalInductor(on_region_error="eager")]).run(trace(one_region), [])


def test_uuids_of_regional_inductor():
    passes = [RegionalInductor(), RegionalInductor(share_identical=False), RegionalInductor(on_region_error="eager")]
    assert len({PassPipeline([one]).uuid() for one in passes}) == 3
