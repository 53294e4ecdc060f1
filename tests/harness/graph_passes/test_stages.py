"""Each stage on each backend: the passes run where Inductor runs them, on the graphs that there are."""

from __future__ import annotations

import pytest
import torch

from pytest_regional.harness.graph_passes.recorder import GraphAssertionError, GraphPassError
from pytest_regional.testing import at_least, pre_grad_pass, regional, run_pass

from .passes import Named, nothing, products, second_operand_twice, two_regions

FORWARD, BACKWARD = ("forward", "products"), ("backward", "products")

#: What each backend shows a pass of a program that trains.
PLACES = {
    "inductor": {
        "pre_grad": [("dynamo", None)],
        "joint": [("joint", None)],
        "post_grad": [("forward", None), ("backward", None)],
    },
    "reference": {"pre_grad": [("dynamo", None)], "joint": [FORWARD, BACKWARD], "post_grad": [FORWARD, BACKWARD]},
    "torch": {"pre_grad": [FORWARD, BACKWARD], "joint": [FORWARD, BACKWARD], "post_grad": [FORWARD, BACKWARD]},
}


def places(result):
    return [(one.kind, one.region) for one in result.graphs]


@pytest.mark.parametrize("backend", PLACES)
def test_a_program_that_trains(backend):
    with regional(backend) as r:
        x, w = r.randn(4, 8, requires_grad=True), r.randn(8, 8, requires_grad=True)
        found = {stage: places(r.run_pass(nothing, products, x, w, stage=stage)) for stage in PLACES[backend]}
    assert found == PLACES[backend]
    assert x.grad is None


@pytest.mark.parametrize("stage", ["joint_pre", "joint_post", "post_grad_pre", "post_grad_post"])
def test_both_ends_of_a_stage(inductor, stage):
    """Inductor itself turns an addition behind a product into addmm between the two ends of post-grad."""
    x = inductor.randn(8, 8)
    result = inductor.run_pass(nothing, lambda x: x @ x + x, x, stage=stage)
    assert (result.stage, result.changed) == (stage, False)
    fused = stage == "post_grad_post"
    result.assert_count("aten.addmm", int(fused))
    result.assert_count("aten.add", int(not fused))


@pytest.mark.parametrize("stage", ["pre_grad", "joint", "post_grad"])
def test_the_pass_decides_what_is_computed(inductor, stage):
    """The proof that the graph after is what was compiled is the wrong answer."""
    x, w = inductor.randn(8, 8), inductor.randn(8, 8)
    result = inductor.run_pass(second_operand_twice, products, x, w, stage=stage)
    with pytest.raises(AssertionError, match="compiled without it the program agrees with eager"):
        result.assert_same_numerics()


def test_many_runs_of_one_program_never_hit_a_limit_nor_make_it_dynamic(inductor):
    with inductor.expect(recompiles=0, fallbacks=0):
        shapes = [
            inductor.run_pass(nothing, products, inductor.randn(n, 8), inductor.randn(8, 8)) for n in range(2, 13)
        ]
    assert [one.graph().before.graph.find_nodes(op="placeholder")[0].meta["val"].shape[0] for one in shapes] == list(
        range(2, 13)
    )


def test_a_cached_result_does_not_stand_in_for_a_run(inductor):
    runs = []
    x, w = inductor.randn(4, 8), inductor.randn(8, 8)
    for _ in range(2):
        inductor.run_pass(Named(runs.append), products, x, w)
    assert len(runs) == 2


def test_dynamic_sizes_and_settings_are_those_of_compile(inductor):
    x, w = inductor.randn(4, 8), inductor.randn(8, 8)
    result = inductor.run_pass(nothing, products, x, w, dynamic=True)
    assert any(isinstance(node.meta["val"], torch.SymInt) for node in result.after.graph.find_nodes(op="placeholder"))
    with pytest.raises(GraphAssertionError, match="use_post_grad_passes or its kind may be off"):
        inductor.run_pass(nothing, products, x, w, inductor_configs={"use_post_grad_passes": False})


def test_a_module(inductor):
    torch.manual_seed(0)
    module = torch.nn.Linear(8, 8, bias=False)
    result = inductor.run_pass(second_operand_twice, module, inductor.randn(8, 8))
    assert places(result) == [("forward", None), ("backward", None)]
    with pytest.raises(AssertionError, match="second_operand_twice: compiled without it"):
        result.assert_same_numerics()


def test_each_region_has_its_own_graph():
    with regional("reference") as r:
        x, w = r.randn(4, 8), r.randn(8, 8)
        result = r.run_pass(nothing, two_regions, x, w, stage="post_grad")
        assert places(result) == [("inference", "first"), ("inference", "second")]
        assert result.graph(region="second").before.nodes
        result.assert_count("aten.mm", 1, region="first")
        result.assert_count("aten.mm", 2)
        result.assert_count("aten.mm", at_least(1))
        with pytest.raises(GraphPassError, match=r"2 such graphs: .*'first', the inference graph of region 'second'"):
            _ = result.before
        with pytest.raises(GraphPassError, match=r"did not run on the backward graph; they ran on"):
            result.assert_count("aten.mm", 1, graph="backward")
        assert result.graph("inference", index=1).region == "second"


def test_a_pass_that_no_graph_reaches():
    with regional("reference", expects_regions=False) as r:
        with pytest.raises(
            GraphAssertionError, match=r"nothing never ran at stage 'post_grad' with backend 'reference'"
        ):
            r.run_pass(nothing, torch.sin, r.randn(3))
    with regional("aot_eager", expects_regions=False) as r:
        with pytest.raises(GraphAssertionError, match="try stage='graph'"):
            run_pass(nothing, torch.sin, r.randn(3), stage="pre_grad")


def test_a_pass_that_stands_there_already(inductor):
    with pytest.raises(GraphPassError, match="give run_pass a list of both"):
        inductor.run_pass(
            nothing, torch.sin, inductor.randn(3), inductor_configs={"post_grad_custom_post_pass": nothing}
        )


def test_an_unknown_stage(bare):
    with pytest.raises(GraphPassError, match=r"unknown stage 'pre_grid'. Did you mean 'pre_grad'"):
        bare.run_pass(nothing, torch.sin, bare.randn(3), stage="pre_grid")


def test_settings_are_as_they_were(inductor):
    from torch._inductor import config

    inductor.run_pass(nothing, products, inductor.randn(4, 8), inductor.randn(8, 8), stage="joint")
    assert (config.joint_custom_post_pass, config.post_grad_custom_post_pass) == (None, None)


def test_counts_of_pre_grad_runs():
    counting = pre_grad_pass(uuid="v1")
    with regional("inductor") as r, r.expect(pre_grad_calls=2):
        r.run_pass([counting, nothing], products, r.randn(4, 8), r.randn(8, 8), stage="pre_grad")
    assert counting.calls_by_compile == (1,)


def test_passes_on_bare_graphs_are_no_vacuous_test():
    with regional("inductor") as r:
        r.run_pass(nothing, torch.sin, r.randn(3), stage="graph")
