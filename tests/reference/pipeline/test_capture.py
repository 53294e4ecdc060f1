"""Capture: one joint graph of plain ATen, whose inputs and outputs say what they are."""

import re

import pytest
import torch

from pytest_regional import RegionalWarning
from pytest_regional.reference import pipeline
from tests.reference.pipeline.models import Block, model_and_inputs


def targets(gm):
    return {node.target for node in gm.graph.nodes if node.op == "call_function"}


@pytest.fixture
def joint():
    return pipeline.capture(*model_and_inputs("Block"))


def test_inputs_and_outputs_are_named(joint):
    assert joint.kind == "joint"
    assert joint.parameters == ("weight", "norm.weight", "norm.bias")
    assert joint.buffers == ("calls", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked")
    assert [str(value) for value in joint.inputs] == [
        *(f"parameter {name}" for name in joint.parameters),
        *(f"buffer {name}" for name in joint.buffers),
        "input 0",
        "tangent output 0",
        "tangent output 1",
    ]
    assert [str(value) for value in joint.outputs] == [
        "mutated buffer calls",
        "mutated buffer norm.running_mean",
        "mutated buffer norm.running_var",
        "mutated buffer norm.num_batches_tracked",
        "output 0",
        "output 1",
        "output 2",
        "gradient parameter weight",
        "gradient parameter norm.weight",
        "gradient parameter norm.bias",
        "gradient input 0",
    ]
    assert all(value.node.op == "placeholder" for value in joint.inputs)


def test_nothing_is_decomposed_unless_requested(joint):
    gelu = torch.ops.aten.gelu.default
    table = torch._decomp.get_decompositions([gelu])
    plain = pipeline.capture(torch.nn.functional.gelu, (torch.randn(3),))
    taken_apart = pipeline.capture(torch.nn.functional.gelu, (torch.randn(3),), decompositions=table)

    assert targets(plain.graph_module) == {gelu}
    assert gelu not in targets(taken_apart.graph_module)
    assert torch.ops.aten.erf.default in targets(taken_apart.graph_module)


def test_annotations_reach_forward_and_backward(joint):
    marked = {
        node.meta["partitioner_tag"]
        for node in joint.graph_module.graph.nodes
        if "compile_with_inductor" in node.meta.get("custom", {})
    }
    assert marked == {"is_forward", "is_backward"}


@pytest.mark.parametrize("strict", [True, False])
def test_tracing_changes_nothing_of_the_process_or_the_model(strict):
    model, inputs = model_and_inputs("Block")
    random, buffers = torch.get_rng_state(), [value.clone() for value in model.buffers()]

    pipeline.capture(model, inputs, strict=strict)

    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(*pair) for pair in zip(buffers, model.buffers(), strict=True))
    assert type(torch.zeros(2)) is torch.Tensor  # no mode is left on
    assert torch._guards.TracingContext.try_get() is None


def test_a_function_without_gradients_is_an_inference_graph():
    joint = pipeline.capture(lambda x: x.sin(), (torch.randn(3),))

    assert (joint.kind, joint.parameters, [str(value) for value in joint.inputs]) == ("inference", (), ["input 0"])


def test_without_grad_mode_there_is_no_backward():
    with torch.no_grad():
        assert pipeline.capture(*model_and_inputs("Block")).kind == "inference"


def test_a_copy_has_a_graph_of_its_own(joint):
    duplicate = joint.copy()
    for node in reversed(duplicate.graph_module.graph.nodes):
        if node.target is torch.ops.aten.sin.default:
            node.target = torch.ops.aten.cos.default

    assert torch.ops.aten.sin.default in targets(joint.graph_module)
    assert torch.ops.aten.sin.default not in targets(duplicate.graph_module)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, ()), "needs a module or a function, not 3"),
        ((Block(), torch.randn(2, 4)), "as a tuple, not Tensor: write capture(model, (x,), {})"),
        ((Block(), (torch.randn(2, 5),)), "Block cannot be captured as one graph"),
    ],
)
def test_a_model_that_cannot_be_captured_is_an_error(arguments, message):
    with pytest.raises(pipeline.PipelineError, match=re.escape(message)):
        pipeline.capture(*arguments)


def test_a_graph_break_is_an_error_that_says_where():
    def breaks(x):
        torch._dynamo.graph_break()
        return x.sin()

    with pytest.raises(pipeline.PipelineError, match=r"torch\.compile") as caught:
        pipeline.capture(breaks, (torch.randn(3),))
    assert caught.value.__cause__ is not None
    # Without Dynamo there are no graph breaks.
    assert pipeline.capture(breaks, (torch.randn(3),), strict=False).kind == "inference"


def test_printed_in_one_line(joint):
    assert re.fullmatch(r"joint graph of Block: \d+ ops, 3 parameters, 4 buffers", str(joint))


class WithMethod(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def logits(self, x):
        return self.linear(x)

    def forward(self, x):
        return self.logits(x).softmax(-1)


@pytest.mark.parametrize("strict", [True, False])
def test_a_method_has_the_parameters_of_its_module(strict):
    model, x = WithMethod(), torch.randn(2, 4)
    compiled = pipeline.compile(model.logits, (x,), strict=strict)

    assert dict(compiled.named_parameters()).keys() == {"linear.weight", "linear.bias"}
    compiled(x).sum().backward()
    assert model.linear.weight.grad is not None
    assert torch.equal(compiled(x), model.logits(x))
    assert not torch.equal(compiled(x), model(x))


class Hiding(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [torch.nn.Linear(4, 4)]

    def forward(self, x):
        return self.layers[0](x)


@pytest.mark.parametrize("strict", [True, False])
def test_parameters_that_would_get_no_gradient_are_refused(strict):
    linear, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    message = r"neither its inputs nor its parameters \(Parameter of shape \(4, 4\)"
    for model in (lambda x: linear(x), Hiding()):
        with pytest.raises(pipeline.PipelineError, match=message):
            pipeline.capture(model, (x,), strict=strict)
    linear.requires_grad_(False)
    assert pipeline.capture(lambda x: linear(x), (x,), strict=strict).kind == "inference"


class Changing(torch.nn.Module):
    def __init__(self, what):
        super().__init__()
        self.what, self.calls, self.seen = what, 0, []
        self.register_buffer("average", torch.zeros(3))

    def forward(self, x):
        if self.what == "assigns":
            self.average = 0.5 * self.average + x
        elif self.what == "writes":
            self.average.mul_(0.5).add_(x)
        elif self.what == "counts":
            self.calls += 1
        else:
            self.seen.append(1)
        return x + self.average


def test_assigning_a_buffer_is_refused():
    with pytest.raises(pipeline.PipelineError, match=r"assigns a buffer or parameter .*_buffers.*in place"):
        pipeline.capture(Changing("assigns"), (torch.ones(3),))
    model = Changing("writes")
    compiled = pipeline.compile(model, (torch.ones(3),))
    compiled(torch.ones(3))
    assert torch.equal(model.average, torch.ones(3))


@pytest.mark.parametrize("what", ["counts", "appends"])
def test_pythons_side_effects_are_a_warning(what):
    with pytest.warns(RegionalWarning, match="changes non-tensors"):
        pipeline.capture(Changing(what), (torch.ones(3),))


class Box:
    def __init__(self, held):
        self.held = held


@pytest.mark.parametrize("strict", [True, False])
def test_an_input_that_is_no_pytree_is_refused_with_what_to_do(strict):
    """``torch.compile`` takes it, so that is no way to find out where it fails."""

    class Model(torch.nn.Module):
        def forward(self, x, box):
            return x + box.held

    with pytest.raises(pipeline.PipelineError, match=r"register another class with torch\.utils\._pytree") as caught:
        pipeline.capture(Model(), (torch.ones(3), Box(torch.ones(3))), strict=strict)
    assert "captures in the same way" not in str(caught.value)
    assert ("runs on fake tensors" in str(caught.value)) == (not strict)
