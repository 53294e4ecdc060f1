"""Mode ``graph``: programs become FX graphs without Dynamo."""

import contextlib
from dataclasses import replace

import pytest
import torch

from pytest_regional._base.errors import RegionalRuntimeError
from pytest_regional.fuzz.graph_capture import (
    compiled_on_first_call,
    graph_of_program,
    needs_dynamo,
)
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Block, Context, Program, Region, Step
from pytest_regional.fuzz.oracles import check
from pytest_regional.fuzz.oracles.example_run import ExampleRun
from pytest_regional.harness.observe.listeners import CompileListener
from pytest_regional.testing import regional

A = (Region("a"),)
SIN = Step("sin", (0,), (), (1,), A)
MATRIX = TensorInput((4, 4))


def program(*steps, outputs=(1,), arguments=(MATRIX,), **more):
    return Program(arguments, steps, outputs, training=False, **more)


def captured(one):
    return graph_of_program(one, one.inputs())[0]


def never():
    raise AssertionError("compiled in another way")


def test_annotations_are_in_the_metadata_of_nodes():
    graph = captured(program(SIN, Step("exp", (1,), (), (2,)), outputs=(2,))).graph
    (sin,), (exp,) = ([node for node in graph.nodes if name in node.name] for name in ("sin", "exp"))
    assert sin.meta["custom"] == {"compile_with_inductor": {"inductor_region": "a"}}
    assert "compile_with_inductor" not in exp.meta.get("custom", {})


def test_every_value_has_an_example():
    topk = Step("topk", (0,), (("k", 2), ("dim", 1), ("largest", True)), (2, 3))
    graph = captured(program(SIN, topk, outputs=(1, 2, 3))).graph
    examples = [node.meta["example_value"] for node in graph.nodes if node.op != "output"]
    assert all(isinstance(one, (torch.Tensor, tuple)) for one in examples)
    assert {tuple(one.shape) for one in examples if isinstance(one, torch.Tensor)} == {(4, 4), (4, 2)}


def test_a_backend_computes_each_value_once_and_no_input():
    graphs = []

    def compile_graph(gm, inputs):
        graphs.append(gm)
        return gm

    twice = program(SIN, outputs=(1, 0, 1))
    compiled = compiled_on_first_call(twice, compile_graph, never)
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
    compiled = compiled_on_first_call(program(SIN), lambda gm, inputs: graphs.append(gm) or gm, never)
    compiled(torch.ones(4, 2))
    compiled(torch.ones(2, 4).t())
    compiled(torch.zeros(4, 2))
    assert len(graphs) == 2


def test_a_graph_takes_the_inputs_that_it_reads():
    one = program(Step("sin", (1,), (), (2,)), outputs=(2, 0), arguments=(MATRIX, MATRIX))
    gm, used = graph_of_program(one, one.inputs())
    assert (used, len(gm.graph.find_nodes(op="placeholder"))) == ((1,), 1)
    x, y = one.inputs()
    sine, first = compiled_on_first_call(one, lambda gm, inputs: gm, never)(x, y)
    assert first is x
    torch.testing.assert_close(sine, y.sin())


def test_elements_are_assigned():
    steps = Step("clone", (0,), (), (2,)), Step("set_last_row", (2, 1))
    written = program(*steps, outputs=(2,), arguments=(MATRIX, TensorInput((4,))))
    inputs = written.inputs()
    torch.testing.assert_close(captured(written)(*inputs)[0], written(*inputs)[0])


def test_what_returns_its_operand_makes_no_other_tensor():
    steps = Step("dropout_in_eval", (1,), (), (2,)), Step("exp", (2,), (), (3,))
    graph = captured(program(SIN, *steps, outputs=(1, 3))).graph
    first, second = graph.output_node().args[0]
    assert (first.name, second.all_input_nodes) == ("sin", [first])


def test_state_is_set_by_calls_as_in_the_graphs_of_dynamo():
    steps = [
        Step("sin", (0,), (), (1,), (Context("no_grad"),)),
        Step("mm", (0, 0), (), (2,), (Context("autocast"), *A)),
        Step("mm", (0, 0), (), (3,)),
    ]
    one = Program((replace(MATRIX, requires_grad=True),), tuple(steps), (1, 2, 3))
    gm = captured(one)
    called = [getattr(node.target, "__name__", node.target) for node in gm.graph.nodes if node.op.startswith("call_")]
    assert called == [
        "_set_grad_enabled",
        "sin",
        "_set_grad_enabled",
        "_enter_autocast",
        "mm",
        "_exit_autocast",
        "mm",
    ]
    ours, eager = gm(*one.inputs()), one(*one.inputs())
    for mine, theirs in zip(ours, eager, strict=True):
        assert (mine.dtype, mine.requires_grad) == (theirs.dtype, theirs.requires_grad)
        torch.testing.assert_close(mine, theirs)


def test_what_only_dynamo_sees():
    block = Block((0,), (Step("sin", (0,), (), (1,)),), 1)
    nested = Step("nested", (0,), (), (1,), blocks=(0,))
    assert needs_dynamo(program(SIN)) == ""
    assert needs_dynamo(program(SIN, dynamic=True)) == "sizes are symbols"
    assert needs_dynamo(program(SIN, arguments=(TensorInput((4, 4), dynamic=(0,)),))) == ""
    assert needs_dynamo(program(nested, blocks=(block,))) == "a block is called by an operator"
    assert "runs code of its own" in needs_dynamo(program(Step("function_doubled_gradient", (0,), (), (1,))))


def test_sizes_are_constants():
    one = program(SIN, arguments=(TensorInput((4, 4), dynamic=(0,)),))
    with regional("reference", "cpu", expects_regions=False) as harness:
        graphs = []
        compiled = compiled_on_first_call(one, lambda gm, inputs: harness._compile_graph(gm, inputs, options), never)
        options = harness._options
        harness.observer.listeners.append(Listener(graphs))
        compiled(*one.inputs())
    assert graphs == [[(4, 4), (4, 4)]]


class Listener(CompileListener):
    def __init__(self, shapes):
        self.shapes = shapes

    @contextlib.contextmanager
    def compiling_graph(self, kind, gm):
        self.shapes.append([tuple(node.meta["val"].shape) for node in gm.graph.nodes if "val" in node.meta])
        yield lambda result: None


def test_a_graph_that_cannot_be_written_down_is_compiled_otherwise():
    one = program(SIN)
    object.__setattr__(one, "function", lambda x: (torch.full((2,), x.sum().item()),))
    with pytest.raises(RegionalRuntimeError, match="a number depends on data"):
        graph_of_program(one, one.inputs())
    compiled = compiled_on_first_call(one, lambda gm, inputs: gm, lambda: lambda x: "otherwise")
    assert compiled(*one.inputs()) == "otherwise"


def test_dynamo_has_no_part_in_it(monkeypatch):
    monkeypatch.setattr("pytest_regional.fuzz.oracles.example_run.DYNAMO_EVERY", 2**40)
    with regional("reference", "cpu", expects_regions=False) as harness:
        with monkeypatch.context() as patch:
            patch.setattr(torch, "compile", lambda *_, **__: (_ for _ in ()).throw(AssertionError("Dynamo compiled")))
            result = check(harness, program(SIN), mode="graph", oracles=("compiles", "parity", "plan"))
        assert {"compiles", "parity", "plan"} == set(result.oracles)
        assert harness.observer.log.since()


def test_one_program_in_ten_goes_through_dynamo(monkeypatch):
    monkeypatch.setattr("pytest_regional.fuzz.oracles.example_run.compiled_on_first_call", lambda *_: None)
    with regional("reference", "cpu", expects_regions=False) as harness:
        compiled = [
            ExampleRun(harness, one, "graph").compile(one)
            for one in (program(SIN, arguments=(TensorInput((size,)),)) for size in range(2, 202))
        ]
    assert 8 <= sum(one is not None for one in compiled) <= 35


def test_caches_are_hit_by_the_same_graph():
    with regional("reference", "cpu", expects_regions=False) as harness:
        result = check(harness, program(SIN), mode="graph", oracles=("compiles", "warm", "annotations_in_key"))
    assert "warm" in result.oracles, result.skipped


def test_graphs_with_methods_are_cached():
    method = Step("mul_number_", (1,), (("value", 0.5),))
    with regional("reference", "cpu", expects_regions=False) as harness:
        result = check(harness, program(SIN, method), mode="graph", oracles=("compiles", "warm"))
    assert "warm" in result.oracles, result.skipped
