"""Mode ``aten``: ATen graphs go to a backend's graph pass, without Dynamo and AOTAutograd."""

import itertools
import linecache
import random
from dataclasses import replace

import pytest
import torch

from pytest_regional._base.errors import RegionalRuntimeError, RegionalValueError
from pytest_regional._torch.fx_graphs import forget_sources
from pytest_regional.fuzz.draw.graphs import random_programs, reannotated, with_other_annotations
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Block, Context, Program, Region, Step
from pytest_regional.fuzz.oracles import OracleViolationError, check
from pytest_regional.fuzz.oracles.example_run import annotation_of, aten_graph_of, call
from pytest_regional.harness.observe.annotated import configs_of, region_of
from pytest_regional.harness.regional import harness
from pytest_regional.testing import regional
from tests.faults.of_backends import FAULTS
from tests.faults.planting import spec_of

A, B = (Region("a"),), (Region("b", (("max_fusion_size", 8),)),)
MATRIX = TensorInput((4, 4))


def program(*steps, outputs, arguments=(MATRIX,), **more):
    return Program(arguments, steps, outputs, training=False, **more)


CHAIN = program(
    Step("sin", (0,), (), (1,), A), Step("exp", (1,), (), (2,)), Step("cos", (2,), (), (3,), B), outputs=(3,)
)


def regions_of(gm):
    nodes = [node for node in gm.graph.nodes if node.op == "call_function"]
    return [(node.target.name(), region_of(node) and region_of(node)[0]) for node in nodes]


def test_statements_give_their_annotations_to_their_nodes():
    gm = aten_graph_of(CHAIN).annotated(CHAIN)
    assert regions_of(gm) == [("aten::sin", "a"), ("aten::exp", None), ("aten::cos", "b")]
    (cos,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.cos.default)
    assert configs_of(cos) == {"max_fusion_size": 8}


def test_programs_that_differ_in_annotations_share_a_trace():
    other = CHAIN.with_steps(tuple(replace(step, scope=A) for step in CHAIN.steps))
    assert aten_graph_of(other) is aten_graph_of(CHAIN)
    gm = aten_graph_of(other).annotated(other)
    assert [region for _, region in regions_of(gm)] == ["a", "a", "a"]
    assert [region for _, region in regions_of(aten_graph_of(CHAIN).annotated(CHAIN))] == ["a", None, "b"]


def test_blocks_that_are_called_bear_their_own_annotations():
    block = Block((0,), (Step("cos", (0,), (), (1,), B),), 1)
    one = program(Step("call", (0,), (), (1,), A, (0,)), outputs=(1,), blocks=(block,))
    assert regions_of(aten_graph_of(one).annotated(one)) == [("aten::cos", "b")]


def test_the_innermost_annotation_holds_and_tags_are_kept():
    assert annotation_of((Context("tag"), Region("a"), Region("b"))) == {
        "note": "not for a compiler",
        "compile_with_inductor": {"inductor_region": "b"},
    }
    assert annotation_of((Context("no_grad"),)) == {}


def test_writes_to_inputs_come_last():
    written = program(Step("sin_", (0,), (), (), A), outputs=(0,))
    graph = aten_graph_of(written)
    (x,) = graph.inputs
    given = x.clone()
    call(graph.annotated(written), (given,))
    torch.testing.assert_close(given, x.sin())
    assert [name for name, _ in regions_of(graph.module)] == ["aten::sin", "aten::copy_"]


def test_what_cannot_be_traced_says_why():
    own = program(Step("function_doubled_gradient", (0,), (), (1,)), outputs=(1,))
    with pytest.raises(RegionalRuntimeError, match="runs code of its own"):
        aten_graph_of(own)
    writing = program(Step("custom_mutating", (0, 1)), outputs=(0,), arguments=(MATRIX, MATRIX))
    for _ in range(2):  # the second time from memory
        with pytest.raises(RegionalRuntimeError, match="it cannot be traced"):
            aten_graph_of(writing)
    with regional("reference", "cpu", expects_regions=False) as target:
        result = check(target, writing, mode="aten")
    assert not result.oracles
    assert "it has no ATen graph here" in result.skipped["plan"]


def test_the_oracles_that_need_no_autograd_are_checked():
    names = ("compiles", "parity", "region_boundary", "configs", "plan")
    with regional("reference", "cpu", expects_regions=False) as target:
        result = check(target, CHAIN, mode="aten", oracles=(*names, "warm"))
    assert result.oracles == names
    assert result.skipped["warm"] == "it says nothing in mode 'aten'"


def test_neither_dynamo_nor_autograd_has_a_part_in_it(monkeypatch):
    def never(*_, **__):
        raise AssertionError("something else compiled")

    monkeypatch.setattr(torch, "compile", never)
    monkeypatch.setattr("torch._functorch.aot_autograd.aot_module_simplified", never)
    for backend in ("reference", "torch"):
        with regional(backend, "cpu", expects_regions=False) as target:
            assert "plan" in check(target, CHAIN, mode="aten", oracles=("plan",)).oracles


def test_a_backend_without_a_graph_pass_is_told():
    with regional("reference", "cpu", expects_regions=False) as target:
        spec = replace(target._spec, graph_pass=None, name="dynamo_only")
    with harness(spec, "cpu") as target, pytest.raises(RegionalValueError, match="graph pass of a backend"):
        check(target, CHAIN, mode="aten")


def test_an_exception_of_the_backend_is_a_violation():
    def failing(gm, inputs):
        raise ValueError("no")

    with regional("reference", "cpu", expects_regions=False) as target:
        spec = replace(target._spec, graph_pass=lambda: failing)
    with harness(spec, "cpu") as target, pytest.raises(OracleViolationError, match="raises ValueError: no") as caught:
        check(target, CHAIN, mode="aten")
    assert (caught.value.oracle, caught.value.stage) == ("compiles", "compile")


def variants(count, seed):
    return itertools.islice(with_other_annotations(random_programs(seed), 8, seed), count)


@pytest.mark.parametrize(
    ("mode", "fault", "oracles"),
    [
        ("aten", "every_op_alone", ("plan",)),
        ("aten", "configs_merged", ("plan", "configs")),
        ("aten", "edges_ignored_in_plan", ("order",)),
        ("aten", "whole_regions_unordered", ("region_order",)),
        ("graph", "every_op_alone", ("plan",)),
        ("graph", "configs_merged", ("plan", "configs")),
    ],
)
def test_planted_faults_are_noticed(mode, fault, oracles):
    drawn = variants(400, 5501) if mode == "aten" else random_programs(5501)
    with harness(spec_of(FAULTS[fault]), "cpu") as target, pytest.raises(OracleViolationError) as caught:
        for one in itertools.islice(drawn, 400):
            check(target, one, mode=mode, oracles=oracles, blame=False)
    assert caught.value.oracle in oracles


def test_the_reference_gives_no_alarm():
    with regional("reference", "cpu", expects_regions=False) as target:
        judged = sum("plan" in check(target, one, mode="aten").oracles for one in variants(40, 5502))
    assert judged >= 20


def test_a_program_comes_with_other_annotations():
    chain = program(*(Step("sin", (n,), (), (n + 1,), A) for n in range(12)), outputs=(12,))
    first, *others = itertools.islice(with_other_annotations(itertools.repeat(chain), 5, 1), 5)
    assert first is chain
    assert len({one.steps for one in others}) == 4
    assert all([step.operands for step in one.steps] == [step.operands for step in chain.steps] for one in others)


def test_no_annotation_needs_what_a_backend_disclaims():
    without = frozenset({"region_configs", "nested_regions", "region_order"})
    for number in range(20):
        one = reannotated(CHAIN, random.Random(number), without)
        assert not any(region.configs or region.after for region in one.regions)


def test_code_of_old_graphs_is_forgotten():
    graph = torch.fx.Graph()
    graph.output(graph.call_function(torch.sin, (graph.placeholder("x"),)))
    kept = [torch.fx.GraphModule({}, graph) for _ in range(4)]
    forget_sources(2)
    names = [one.forward.__func__.__code__.co_filename for one in kept]
    assert [name in linecache.cache for name in names] == [False, False, True, True]
    torch.testing.assert_close(kept[0](torch.ones(2)), torch.ones(2).sin())
