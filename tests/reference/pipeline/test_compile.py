"""Compile: what comes out trains as the model does, bit for bit while no pass changes anything."""

import pytest
import torch

import pytest_regional.testing
from pytest_regional.harness.compile_times import PhaseClock
from pytest_regional.reference import pipeline
from tests.reference.pipeline.models import MODELS, assert_same_bits, model_and_inputs, step


@pytest.mark.parametrize("partitioner", ["default", "min_cut"])
@pytest.mark.parametrize("name", MODELS)
def test_without_passes_every_bit_is_eagers(name, partitioner):
    model, inputs = model_and_inputs(name)
    twin, _ = model_and_inputs(name)
    compiled = pipeline.compile(model, inputs, partitioner=partitioner)

    for seed in (3, 4):
        assert_same_bits(step(compiled, inputs, seed=seed), step(twin, inputs, seed=seed))


def test_keyword_arguments_and_structures():
    model, inputs = model_and_inputs("Block")
    twin, _ = model_and_inputs("Block")
    keywords = {"scale": 3.0, "extra": {"shift": torch.randn(4)}}
    compiled = pipeline.compile(model, inputs, keywords)

    assert_same_bits(step(compiled, inputs, **keywords), step(twin, inputs, **keywords))
    turned = dict(reversed(keywords.items()))
    assert_same_bits(step(compiled, inputs, **turned), step(twin, inputs, **keywords))


def test_a_parameter_that_is_replaced_is_seen():
    model, inputs = model_and_inputs("Tied")
    compiled = pipeline.compile(model, inputs)
    replacement = torch.nn.Parameter(torch.zeros(4, 4))
    model.first.weight = model.second.weight = replacement

    assert not compiled(*inputs).any()


def test_everything_is_compiled_at_once():
    model, inputs = model_and_inputs("Block")
    with pytest_regional.testing.regional("reference", expects_regions=False) as harness:
        compiled = pipeline.compile(model, inputs)
        with harness.no_compile():
            step(compiled, inputs)


def test_passes_see_their_graphs():
    seen = []

    @pipeline.graph_pass(name="look", graphs=("joint", "forward", "backward", "inference"))
    def look(gm, example_inputs, *, graph):
        placeholders = gm.graph.find_nodes(op="placeholder")
        assert len(placeholders) == len(example_inputs)
        assert all(isinstance(node.meta["val"], torch.Tensor) for node in placeholders)
        seen.append(graph)

    model, inputs = model_and_inputs("Block")
    compiled = pipeline.compile(model, inputs, passes=[look])
    assert seen == ["joint", "forward", "backward"]
    assert [one.graph for one in compiled.report] == seen

    seen.clear()
    with torch.no_grad():
        pipeline.compile(model, inputs, passes=[look])
    assert seen == ["inference"]

    seen.clear()
    pipeline.compile(model, inputs, passes=[look], disable=["look"])
    assert not seen


@pytest.mark.parametrize("boxed", [False, True])
def test_a_terminal_pass_may_return_any_callable(boxed):
    calls = []

    @pipeline.graph_pass(name="mine", terminal=True)
    def mine(gm, example_inputs):
        def run(*values):
            calls.append(len(values))
            arguments = list(values[0]) if boxed else values
            return gm(*arguments)

        run._boxed_call = boxed
        return run

    model, inputs = model_and_inputs("Tied")
    twin, _ = model_and_inputs("Tied")
    assert_same_bits(step(pipeline.compile(model, inputs, passes=[mine]), inputs), step(twin, inputs))
    assert len(calls) == 2


def test_dynamic_sizes():
    model, inputs = model_and_inputs("Tied")
    compiled = pipeline.compile(model, inputs, dynamic=True)

    for rows in (6, 9, 2):
        x = torch.randn(rows, 4)
        assert torch.equal(compiled(x), model(x))


def test_a_captured_graph_can_be_compiled_more_than_once():
    model, inputs = model_and_inputs("Block")
    twin, _ = model_and_inputs("Block")
    joint = pipeline.capture(model, inputs)

    first, second = pipeline.compile(joint), pipeline.compile(joint, partitioner="min_cut")
    assert_same_bits(step(first, inputs), step(twin, inputs))
    assert_same_bits(step(second, inputs), step(twin, inputs))


def test_constants_of_a_closure():
    constant = torch.randn(4)
    compiled = pipeline.compile(lambda x: x * constant, (torch.randn(4),))

    x = torch.randn(4)
    assert torch.equal(compiled(x), x * constant)


def test_passes_count_as_the_phase_passes_and_the_compiler_behind_them_does_not():
    now = [0.0]

    def slow(gm, example_inputs):
        now[0] += 5
        return gm

    @pipeline.graph_pass(terminal=True)
    def compiler(gm, example_inputs):
        now[0] += 70
        return gm

    clock = PhaseClock(lambda: now[0])
    with clock.running():
        pipeline.compile(torch.sin, (torch.randn(3),), passes=[slow, compiler])
    seconds = {phase: sum(s for (one, _), s in clock.seconds.items() if one == phase) for phase, _ in clock.seconds}
    assert seconds["passes"] == 5
    assert pipeline.PassPipeline([slow])(torch.fx.symbolic_trace(torch.nn.ReLU()), [torch.ones(2)]) is not None
