"""Mode ``graph``: programs become FX graphs without Dynamo."""

import torch

from pytest_regional.fuzz.graph_capture import compiled_on_first_call, graph_of_program, needs_dynamo
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Block, Context, Program, Region, Step
from pytest_regional.fuzz.oracles import check
from pytest_regional.fuzz.oracles.example_run import ExampleRun
from pytest_regional.testing import regional

A = (Region("a"),)
SIN = Step("sin", (0,), (), (1,), A)
MATRIX = TensorInput((4, 4))


def program(*steps, outputs=(1,), arguments=(MATRIX,), **more):
    return Program(arguments, steps, outputs, training=False, **more)


def test_annotations_are_in_the_metadata_of_nodes():
    graph = graph_of_program(program(SIN, Step("exp", (1,), (), (2,)), outputs=(2,))).graph
    (sin,), (exp,) = ([node for node in graph.nodes if name in node.name] for name in ("sin", "exp"))
    assert sin.meta["custom"] == {"compile_with_inductor": {"inductor_region": "a"}}
    assert "compile_with_inductor" not in exp.meta.get("custom", {})


def test_a_backend_computes_each_value_once_and_no_input():
    graphs = []

    def compile_graph(gm, inputs):
        graphs.append(gm)
        return gm

    twice = program(SIN, outputs=(1, 0, 1))
    compiled = compiled_on_first_call(twice, compile_graph)
    (x,) = twice.inputs()
    first, second, third = compiled(x)
    assert first is third
    assert second is x
    torch.testing.assert_close(first, x.sin())
    assert len(graphs[0].graph.find_nodes(op="output")[0].args[0]) == 1
    compiled(*twice.inputs(seed=1))
    assert len(graphs) == 1


def test_other_strides_are_another_graph():
    graphs = []
    compiled = compiled_on_first_call(program(SIN), lambda gm, inputs: graphs.append(gm) or gm)
    compiled(torch.ones(4, 2))
    compiled(torch.ones(2, 4).t())
    compiled(torch.zeros(4, 2))
    assert len(graphs) == 2


def test_elements_are_assigned():
    steps = Step("clone", (0,), (), (2,)), Step("set_last_row", (2, 1))
    written = program(*steps, outputs=(2,), arguments=(MATRIX, TensorInput((4,))))
    inputs = written.inputs()
    torch.testing.assert_close(graph_of_program(written)(*inputs)[0], written(*inputs)[0])


def test_what_only_dynamo_sees():
    block = Block((0,), (Step("sin", (0,), (), (1,)),), 1)
    nested = Step("nested", (0,), (), (1,), blocks=(0,))
    assert needs_dynamo(program(SIN)) == ""
    assert needs_dynamo(program(SIN, dynamic=True)) == "sizes are symbols"
    assert needs_dynamo(program(SIN, arguments=(TensorInput((4, 4), dynamic=(0,)),))) == ""
    assert needs_dynamo(program(Step("sin", (0,), (), (1,), (Context("no_grad"),)))) == "no_grad sets state"
    assert needs_dynamo(program(nested, blocks=(block,))) == "a block is called by an operator"
    assert "runs code of its own" in needs_dynamo(program(Step("function_doubled_gradient", (0,), (), (1,))))


def test_dynamo_has_no_part_in_it(monkeypatch):
    monkeypatch.setattr(ExampleRun, "_needs_dynamo", lambda self, program: False)
    with regional("reference", "cpu", expects_regions=False) as harness:
        with monkeypatch.context() as patch:
            patch.setattr(torch, "compile", lambda *_, **__: (_ for _ in ()).throw(AssertionError("Dynamo compiled")))
            result = check(harness, program(SIN), mode="graph", oracles=("compiles", "parity", "plan"))
        assert {"compiles", "parity", "plan"} == set(result.oracles)
        assert harness._observer.log.since()


def test_one_program_in_ten_goes_through_dynamo():
    with regional("reference", "cpu", expects_regions=False) as harness:
        turns = [
            ExampleRun(harness, one, "graph")._needs_dynamo(one)
            for one in (program(SIN, arguments=(TensorInput((size,)),)) for size in range(2, 202))
        ]
    assert 8 <= sum(turns) <= 35


def test_caches_are_hit_by_the_same_graph():
    with regional("reference", "cpu", expects_regions=False) as harness:
        result = check(harness, program(SIN), mode="graph", oracles=("compiles", "warm", "annotations_in_key"))
    assert "warm" in result.oracles, result.skipped
