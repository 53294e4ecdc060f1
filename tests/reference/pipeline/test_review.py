"""Points of the discussion that the pipeline answers as a whole."""

import inspect

import torch

from pytest_regional.reference import RegionalInductor, full_inductor, pipeline
from pytest_regional.reference.full_inductor import decompose

aten = torch.ops.aten


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(4)

    def forward(self, x):
        return torch.nn.functional.silu(self.norm(x))


def test_a_pass_sees_the_op_that_the_compiler_takes_apart():
    seen = []

    @pipeline.graph_pass(name="match", graphs="inference")
    def match(gm, example_inputs):
        seen.extend(node.target for node in gm.graph.nodes if node.op == "call_function")

    @pipeline.graph_pass(name="compiler", graphs="inference", terminal=True)
    def compiler(gm, example_inputs):
        decompose(gm)
        seen.append({node.target for node in gm.graph.nodes if node.op == "call_function"})
        return gm

    model, x = Normed(), torch.randn(2, 4)
    with torch.no_grad():
        compiled = pipeline.compile(model, (x,), passes=[compiler, match])
        torch.testing.assert_close(compiled(x), model(x))
    *before, after = seen
    assert aten.silu.default in before
    assert aten.native_layer_norm.default in before
    assert not {aten.silu.default, aten.native_layer_norm.default} & after


def test_the_compiler_comes_last_wherever_it_stands():
    last = pipeline.graph_pass(name="z")(lambda gm, example_inputs: None)
    for compiler in (full_inductor, RegionalInductor()):
        assert pipeline.PassPipeline([compiler, last]).names[0] == "z"


def test_there_is_no_backend_to_choose():
    assert "backend" not in inspect.signature(pipeline.compile).parameters
